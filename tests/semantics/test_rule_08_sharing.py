"""Rule 8: tied parameters, modules used twice, both kinds of checkpointing, higher-order gradients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradweave as gw
from tests.semantics.helpers import alone, batch, collectives, error, loss_of, mlp, part, same_bits, sgd, weights, wrapped
from tests.support import pool


class Tied(nn.Module):
    """The first and the last layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class Twice(Tied):
    """The middle layer is used twice."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(torch.tanh(self.middle(x)))


class Checkpointed(nn.Module):
    """Three blocks, recomputed in backward; `kind` says which and how."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.blocks = kind, nn.ModuleList(mlp(seed, depth=2) for seed in range(3))

    def forward(self, x: Tensor) -> Tensor:
        again = self.kind != "non-reentrant"
        a, b, c = self.blocks
        if self.kind in ("all reentrant", "all in one"):
            x = x.detach().requires_grad_()
        if self.kind == "all in one":
            return checkpoint(lambda y: c(b(a(y))), x, use_reentrant=True)
        if self.kind == "in two checkpoints":
            x = checkpoint(b, a(x), use_reentrant=True)
            return c(checkpoint(b, torch.tanh(x), use_reentrant=True))
        if self.kind == "all reentrant":
            return checkpoint(c, checkpoint(b, checkpoint(a, x, use_reentrant=True), use_reentrant=True), use_reentrant=True)
        if self.kind == "nested":
            return c(checkpoint(lambda y: checkpoint(b, b(y), use_reentrant=True), a(x), use_reentrant=True))
        return c(checkpoint(b, a(x), use_reentrant=again))


KINDS = ["non-reentrant", "reentrant", "all reentrant", "all in one", "in two checkpoints", "nested"]


def build(kind: str) -> nn.Module:
    return {"tied": Tied, "twice": Twice}[kind]() if kind in ("tied", "twice") else Checkpointed(kind)


def loop(model: nn.Module, optimizer: Any, rank: int, ranks: int, micro: int, scale: float) -> Tensor:
    for step in range(4):
        for m in range(micro):
            (loss_of(model, part(batch(seed=10 * step + m), rank, ranks)) * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def distributed(rank: int, world_size: int, kind: str, accumulate: int, overlap: bool) -> tuple[Tensor, int, int, int]:
    """Weights, gradients, segments and collectives of a step."""
    model = build(kind)
    optimizer = wrapped(model, accumulate=accumulate, overlap=overlap)
    result = loop(model, optimizer, rank, world_size, accumulate, 1.0)
    with collectives() as log:
        for _ in range(accumulate):
            loss_of(model, batch()).backward()
        optimizer.step()
    return result, len({id(p) for p in model.parameters()}), len(optimizer.segments), len(log)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("kind", ["tied", "twice", *KINDS])
def test_shared_and_recomputed_gradients_equal_the_single_process(kind: str, accumulate: int, overlap: bool) -> None:
    model = build(kind)
    expected = loop(model, sgd(model), 0, 1, accumulate, 1 / accumulate)
    for result, count, segments, sent in pool.run(2, distributed, kind, accumulate, overlap):
        assert error(result, expected) < 1e-6
        assert count == segments == sent, "one slot per parameter, sent once"


# -- higher-order gradients -------------------------------------------------------------------------------------------------


def penalty_loss(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    """Loss plus the mean squared norm of its gradient with respect to the inputs."""
    x = pair[0].clone().requires_grad_()
    loss = loss_of(model, (x, pair[1]))
    (slope,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return loss + slope.square().mean()


def penalised(rank: int, world_size: int, accumulate: int, overlap: bool) -> Tensor:
    model = mlp()
    return penalty_loop(model, wrapped(model, accumulate=accumulate, overlap=overlap), rank, world_size, accumulate, 1.0)


def penalty_loop(model: nn.Module, optimizer: Any, rank: int, ranks: int, micro: int, scale: float) -> Tensor:
    for step in range(4):
        for m in range(micro):
            (penalty_loss(model, part(batch(seed=10 * step + m), rank, ranks)) * scale).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_gradient_penalty_equals_the_single_process(accumulate: int, overlap: bool) -> None:
    model = mlp()
    expected = penalty_loop(model, sgd(model), 0, 1, accumulate, 1 / accumulate)
    for result in pool.run(2, penalised, accumulate, overlap):
        assert error(result, expected) < 1e-6


def asked_for(rank: int, world_size: int, accumulate: int, first: int) -> tuple[list[bool], Tensor]:
    """Whether torch.autograd.grad for the parameters gives this rank's own gradients, bit for bit, from step `first` on."""
    model, plain = mlp(), mlp()
    optimizer = wrapped(model, accumulate=accumulate)
    same = []
    for step in range(4):
        pair = part(batch(seed=step), rank, world_size)
        if step >= first:
            plain.load_state_dict(model.state_dict())
            ours = torch.autograd.grad(loss_of(model, pair), list(model.parameters()))
            theirs = torch.autograd.grad(loss_of(plain, pair), list(plain.parameters()))
            same.append(all(map(same_bits, ours, theirs)) and all(p.grad is None for p in model.parameters()))
        for _ in range(accumulate):
            loss_of(model, pair).backward()
        optimizer.step()
        optimizer.zero_grad()
    return same, weights(model)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_torch_autograd_grad_for_parameters_is_neither_changed_nor_reduced_nor_counted(accumulate: int, first: int) -> None:
    for same, result in pool.run(2, asked_for, accumulate, first):
        assert same == [True] * (4 - first)
        assert error(result, alone()) < 1e-6


def create_graph(rank: int, world_size: int) -> tuple[list[str], Tensor]:
    model = mlp()
    optimizer = wrapped(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            loss_of(model, part(batch(seed=step), rank, world_size)).backward(create_graph=step == 2)
            optimizer.step()
            optimizer.zero_grad()
    return [str(w.message) for w in caught if "carry no graph" in str(w.message)], weights(model)


def test_backward_with_create_graph_warns_and_still_averages() -> None:
    model = mlp()
    optimizer = sgd(model)
    for step in range(3):
        loss_of(model, batch(seed=step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for messages, result in pool.run(2, create_graph):
        assert messages and "torch.autograd.grad(loss, inputs, create_graph=True)" in messages[0]
        assert error(result, weights(model)) < 1e-6


# -- what only names can tell -----------------------------------------------------------------------------------------------


def named_only(rank: int, world_size: int, accumulate: int) -> Tensor | str:
    """All gradients come from re-entrant checkpoints, and the wrapper does not know the model."""
    model = Checkpointed("all reentrant")
    optimizer = gw.DistributedOptimizer(sgd(model), model.named_parameters(), accumulate=accumulate)
    try:
        return loop(model, optimizer, rank, world_size, accumulate, 1.0)
    except gw.StateError as refusal:
        return str(refusal)


def test_reentrant_checkpoints_everywhere_work_with_named_parameters() -> None:
    model = Checkpointed("all reentrant")
    expected = loop(model, sgd(model), 0, 1, 1, 1.0)
    for result in pool.run(2, named_only, 1):
        assert error(result, expected) < 1e-6


def test_where_micro_batches_cannot_be_counted_accumulate_is_refused_and_says_to_pass_the_model() -> None:
    for text in pool.run(2, named_only, 2):
        assert isinstance(text, str) and "pass the model instead of named parameters" in text
