"""Rule 10: no collectives inside an accumulation window, one reduction at its end, and errors inside leave a usable object."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor.debug import CommDebugMode

import gradweave as gw
from tests.semantics.helpers import alone, batch, collectives, error, loss_of, mlp, part, sgd, weights, wrapped
from tests.support import pool


def window(rank: int, world_size: int, way: str, overlap: bool) -> tuple[list[list[int]], int, Tensor]:
    """Collectives of each of 3 backwards and of the step, per step; segments; weights."""
    model = mlp()
    optimizer = wrapped(model, accumulate=3 if way == "accumulate" else 1, overlap=overlap)
    counts = []
    for step in range(3):
        row = []
        for m in range(3):
            quiet = optimizer.no_sync() if way == "no_sync" and m < 2 else contextlib.nullcontext()
            with collectives() as log, quiet:
                loss = loss_of(model, part(batch(seed=10 * step + m), rank, world_size))
                (loss if way == "accumulate" else loss / 3).backward()
            row.append(len(log))
        with collectives() as log:
            optimizer.step()
        counts.append([*row, len(log)])
        optimizer.zero_grad()
    return counts, len(optimizer.segments), weights(model)


def reference() -> Tensor:
    model = mlp()
    optimizer = sgd(model)
    for step in range(3):
        for m in range(3):
            (loss_of(model, batch(seed=10 * step + m)) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("way", ["accumulate", "no_sync", "plain"])
def test_only_the_last_backward_of_a_window_communicates(way: str, overlap: bool) -> None:
    for counts, segments, result in pool.run(2, window, way, overlap):
        assert counts[0][:3] == [0, 0, 0], "the first window only observes"
        expected = [0, 0, segments, 0] if overlap else [0, 0, 0, segments]
        assert counts[1:] == [expected, expected]
        assert error(result, reference()) < 1e-6


def seen_by_torch(rank: int, world_size: int) -> list[int]:
    model = mlp()
    optimizer = wrapped(model, accumulate=2)
    totals = []
    for step in range(4):
        with CommDebugMode() as mode:
            loss_of(model, batch(seed=step)).backward()
        totals.append(mode.get_total_counts())
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return totals


def test_torchs_own_counter_sees_the_same() -> None:
    assert pool.run(2, seen_by_torch) == [[0, 0, 0, 6]] * 2


def two_losses(rank: int, world_size: int) -> tuple[list[int], Tensor]:
    """Two backwards per step through parts that overlap in one layer, as in multi-task training."""
    model = mlp()
    optimizer = wrapped(model)
    return two_loss_loop(model, optimizer, rank, world_size)


def two_loss_loop(model: nn.Module, optimizer: Any, rank: int, ranks: int) -> tuple[list[int], Tensor]:
    sent = []
    for step in range(4):
        x, y = part(batch(seed=step), rank, ranks)
        with collectives() as log:
            (model(x) - y).square().mean().backward()
            model[:2](x).square().mean().backward()
            optimizer.step()
        sent.append(len(log))
        optimizer.zero_grad()
    return sent, weights(model)


def test_two_losses_per_step_are_learned_in_the_first_step_and_travel_once() -> None:
    model = mlp()
    _, expected = two_loss_loop(model, sgd(model), 0, 1)
    for sent, result in pool.run(2, two_losses):
        assert sent[1:] == [6, 6, 6]
        assert error(result, expected) < 1e-6


# -- errors inside ----------------------------------------------------------------------------------------------------------


class Fuse(torch.autograd.Function):
    """Identity whose backward fails while `blown`."""

    blown = False

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if Fuse.blown:
            raise ArithmeticError("blown")
        return gradient


class Fused(nn.Module):
    """The failure comes when the last two layers have their gradients already."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.body[2:](Fuse.apply(self.body[:2](x)))


def failing(rank: int, world_size: int, way: str, bad_step: int, forget: str) -> Tensor:
    """A failing batch before the good one of step `bad_step`; the user catches the error and goes on."""
    model = Fused()
    optimizer = wrapped(model, accumulate=2 if way == "accumulate" else 1)

    def run(seed: int, blown: bool = False) -> None:
        Fuse.blown = blown
        try:
            loss_of(model, part(batch(seed=seed), rank, world_size)).backward()
        finally:
            Fuse.blown = False

    for step in range(4):
        if step == bad_step:
            fail(run, optimizer, way)
            (optimizer if forget == "optimizer" else model).zero_grad()
        for _ in range(2 if way == "accumulate" else 1):
            run(step)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def fail(run: Callable[..., None], optimizer: gw.DistributedOptimizer, way: str) -> None:
    with contextlib.suppress(ArithmeticError):
        if way == "no_sync":
            with optimizer.no_sync():
                run(99, blown=True)
        else:
            if way == "accumulate":
                run(98)
            run(99, blown=True)


@pytest.mark.parametrize("bad_step", [0, 2])
@pytest.mark.parametrize("way", ["plain", "no_sync", "accumulate"])
def test_after_an_error_inside_backward_and_zero_grad_training_goes_on_as_if_it_had_not_been(way: str, bad_step: int) -> None:
    for result in pool.run(2, failing, way, bad_step, "optimizer"):
        assert error(result, alone()) < 1e-6


@pytest.mark.parametrize("bad_step", [0, 2])
def test_the_same_when_the_model_forgets_the_gradients(bad_step: int) -> None:
    for result in pool.run(2, failing, "plain", bad_step, "model"):
        assert error(result, alone()) < 1e-6


def failing_forward(rank: int, world_size: int) -> Tensor:
    model = mlp()
    optimizer = wrapped(model)
    for step in range(4):
        with contextlib.suppress(RuntimeError):
            model(torch.ones(2, 5))
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_an_error_inside_forward_leaves_no_trace() -> None:
    for result in pool.run(2, failing_forward):
        assert error(result, alone()) < 1e-6


def both_ways(rank: int, world_size: int) -> None:
    with wrapped(mlp(), accumulate=2).no_sync():
        pass


def test_counting_micro_batches_in_two_ways_is_refused() -> None:
    with pytest.raises(gw.ConfigError, match=r"no_sync\(\) with accumulate=2"):
        pool.run(2, both_ways)


# -- loops of other shapes --------------------------------------------------------------------------------------------------


def varying(model: nn.Module, optimizer: Any, rank: int, ranks: int, counts: list[int]) -> Tensor:
    for step, count in enumerate(counts):
        for m in range(count):
            loss_of(model, part(batch(seed=10 * step + m), rank, ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def varying_distributed(rank: int, world_size: int, counts: list[int], overlap: bool) -> Tensor:
    model = mlp()
    return varying(model, wrapped(model, overlap=overlap), rank, world_size, counts)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("counts", [[1, 2, 3, 1], [3, 1, 2, 4]], ids=str)
def test_the_number_of_backwards_per_step_may_change_from_step_to_step(counts: list[int], overlap: bool) -> None:
    model = mlp()
    expected = varying(model, sgd(model), 0, 1, counts)
    for result in pool.run(2, varying_distributed, counts, overlap):
        assert error(result, expected) < 1e-6


def too_many(rank: int, world_size: int, overlap: bool) -> Tensor | str:
    """Three backwards per step where two were announced."""
    model = mlp()
    optimizer = wrapped(model, accumulate=2, overlap=overlap)
    try:
        return varying(model, optimizer, rank, world_size, [2, 3, 2])
    except gw.StateError as refusal:
        return str(refusal)


@pytest.mark.parametrize("overlap", [True, False])
def test_more_backwards_than_accumulate_says_are_refused_or_averaged_over_their_number(overlap: bool) -> None:
    model = mlp()
    optimizer = sgd(model)
    for step, count in enumerate([2, 3, 2]):
        for m in range(count):
            (loss_of(model, batch(seed=10 * step + m)) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in pool.run(2, too_many, overlap):
        if isinstance(result, str):
            assert "accumulate=2" in result
        else:
            assert error(result, weights(model)) < 1e-6


def step_twice(model: nn.Module, optimizer: Any, rank: int, ranks: int) -> Tensor:
    for step in range(3):
        loss_of(model, part(batch(seed=step), rank, ranks)).backward()
        optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def stepped_twice(rank: int, world_size: int) -> Tensor:
    model = mlp()
    return step_twice(model, wrapped(model), rank, world_size)


def test_a_second_step_uses_the_same_gradients_as_in_torch() -> None:
    model = mlp()
    expected = step_twice(model, sgd(model), 0, 1)
    for result in pool.run(2, stepped_twice):
        assert error(result, expected) < 1e-6


def adversarial(rank: int, ranks: int, wrap: Callable[..., Any]) -> Tensor:
    """Two networks, two optimizers: the generator's backward also runs through the discriminator."""
    generator, judge = mlp(0), mlp(1)
    ours, theirs = wrap(generator), wrap(judge)
    for step in range(4):
        noise, real = part(batch(seed=step), rank, ranks)
        theirs.zero_grad()
        (judge(real).square().mean() - judge(generator(noise).detach()).square().mean()).backward()
        theirs.step()
        ours.zero_grad()
        judge(generator(noise)).square().mean().backward()
        ours.step()
    return torch.cat([weights(generator), weights(judge)])


def adversarial_distributed(rank: int, world_size: int) -> Tensor:
    return adversarial(rank, world_size, wrapped)


def test_two_wrapped_networks_that_share_a_backward_equal_the_single_process() -> None:
    expected = adversarial(0, 1, sgd)
    for result in pool.run(2, adversarial_distributed):
        assert error(result, expected) < 1e-6
