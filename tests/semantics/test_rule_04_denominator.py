"""Rule 4: one definition of the mean: over ranks, over `accumulate` micro-batches, or weighted by tokens."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gradweave as gw
from tests.semantics.helpers import alone, batch, error, loss_of, mlp, part, sgd, together, weights, wrapped
from tests.support import pool

TOLERANCE = 1e-6


def micro_batches(step: int, count: int) -> list[tuple[Tensor, Tensor]]:
    return [batch(rows=6, seed=10 * step + m) for m in range(count)]


def accumulated(rank: int, world_size: int, count: int, steps: int = 3, **options: Any) -> Tensor:
    model = mlp()
    optimizer = wrapped(model, **options)
    for step in range(steps):
        for pair in micro_batches(step, count):
            loss_of(model, part(pair, rank, world_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def reference(count: int, averaged: bool, steps: int = 3) -> Tensor:
    model = mlp()
    optimizer = sgd(model)
    for step in range(steps):
        for pair in micro_batches(step, count):
            (loss_of(model, pair) / (count if averaged else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_mean_over_ranks_is_the_gradient_of_the_whole_batch(world_size: int, overlap: bool) -> None:
    for result in pool.run(world_size, together, overlap=overlap):
        assert error(result, alone()) < TOLERANCE


@pytest.mark.parametrize("overlap", [True, False])
def test_accumulate_averages_the_micro_batches(overlap: bool) -> None:
    for result in pool.run(2, accumulated, 3, accumulate=3, overlap=overlap):
        assert error(result, reference(3, averaged=True)) < TOLERANCE


@pytest.mark.parametrize("overlap", [True, False])
def test_without_accumulate_several_backwards_add_up_as_in_torch(overlap: bool) -> None:
    for result in pool.run(2, accumulated, 3, overlap=overlap):
        assert error(result, reference(3, averaged=False)) < TOLERANCE


def partial(rank: int, world_size: int, done: int) -> tuple[Tensor, list[str]]:
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gradweave.sync").addHandler(handler)
    try:
        return accumulated(rank, world_size, done, accumulate=4), records
    finally:
        logging.getLogger("gradweave.sync").removeHandler(handler)


@pytest.mark.parametrize("done", [1, 2])
def test_a_step_after_fewer_backwards_averages_over_those_and_says_so_once(done: int) -> None:
    for result, messages in pool.run(2, partial, done):
        assert error(result, reference(done, averaged=True)) < TOLERANCE
        assert len(messages) == 1
        assert f"step() after {done} of 4 backward passes" in messages[0]


# -- token-weighted mean ----------------------------------------------------------------------------------------------------


def sequences(step: int, rank: int, micro: int, tokens: list[list[int]]) -> tuple[Tensor, Tensor]:
    """A micro-batch of `tokens[rank][micro]` tokens."""
    return batch(rows=tokens[rank][micro], seed=100 * step + 10 * rank + micro)


def token_weighted(rank: int, world_size: int, tokens: list[list[int]], **options: Any) -> Tensor:
    model = mlp()
    now = [0]
    optimizer = wrapped(model, weight=lambda: now[0], accumulate=len(tokens[0]), **options)
    for step in range(3):
        for micro, count in enumerate(tokens[rank]):
            now[0] = count
            if count:
                loss_of(model, sequences(step, rank, micro, tokens)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def token_mean(tokens: list[list[int]]) -> Tensor:
    """The single process: the mean over all tokens of all ranks and micro-batches."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(3):
        pairs = [sequences(step, r, m, tokens) for r, row in enumerate(tokens) for m, count in enumerate(row) if count]
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("tokens", [[[3], [9]], [[2, 7], [5, 1]]], ids=str)
def test_weight_gives_the_mean_over_tokens_when_ranks_hold_different_numbers(tokens: list[list[int]], overlap: bool) -> None:
    expected = token_mean(tokens)
    for result in pool.run(2, token_weighted, tokens, overlap=overlap):
        assert error(result, expected) < TOLERANCE


def test_weight_differs_from_the_equal_mean_on_these_data() -> None:
    assert error(token_mean([[3], [9]]), token_mean([[6], [6]])) > 1e-3


def zero_weight(rank: int, world_size: int) -> Tensor:
    """Rank 1 runs backward on padding only."""
    model = mlp()
    optimizer = wrapped(model, weight=lambda: 8.0 * (rank == 0))
    for step in range(3):
        loss_of(model, batch(rows=8, seed=step if rank == 0 else 77)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_a_rank_of_weight_zero_counts_for_nothing() -> None:
    model = mlp()
    optimizer = sgd(model)
    for step in range(3):
        loss_of(model, batch(rows=8, seed=step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in pool.run(2, zero_weight):
        assert error(result, weights(model)) < TOLERANCE


def test_a_rank_without_tokens_may_skip_backward() -> None:
    for result in pool.run(2, token_weighted, [[5], [0]]):
        assert error(result, token_mean([[5], [0]])) < TOLERANCE


def bad_weight(rank: int, world_size: int, value: float) -> None:
    model = mlp()
    optimizer = wrapped(model, weight=lambda: value)
    loss_of(model, batch()).backward()
    optimizer.step()


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_count_is_refused(value: float) -> None:
    with pytest.raises(gw.ConfigError, match=r"weight\(\) returned"):
        pool.run(2, bad_weight, value)


@pytest.mark.parametrize(
    "options", [{"op": "mean"}, {"accumulate": 0}, {"accumulate": True}, {"op": "sum", "weight": float}], ids=str
)
def test_an_ambiguous_denominator_is_refused(options: dict[str, Any]) -> None:
    model = mlp()
    with pytest.raises(gw.ConfigError, match=f"{next(iter(reversed(options)))}="):
        gw.DistributedOptimizer(sgd(model), model, **options)


def summed_closure(rank: int, world_size: int, options: dict[str, Any]) -> list[float]:
    """The losses that a wrapped optimizer's step returns; rank r's loss is (r + 1) times the model's."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    if options.pop("weighted", False):
        options["weight"] = lambda: 1.0 + 2 * rank
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model, **options)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (rank + 1) * model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss

    return [float(optimizer.step(closure)) for _ in range(3)] + [float(model.weight.grad[0, 0])]


@pytest.mark.parametrize(
    ("options", "loss"), [({}, 3.0), ({"op": "sum"}, 6.0), ({"weighted": True}, 3.5)], ids=["average", "sum", "weighted"]
)
def test_a_closures_loss_is_reduced_as_its_gradients_are(options: dict[str, Any], loss: float) -> None:
    for result in pool.run(2, summed_closure, options):
        assert result == pytest.approx([loss, loss, loss, loss / 2])
