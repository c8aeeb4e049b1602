"""Rule 16: hooks, schedulers, foreach and fused, closures, state dicts, copies behave as they do without us."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics.helpers import alone, batch, collectives, error, loss_of, mlp, part, sgd, train, weights, wrapped
from tests.support import pool

RANKS = 2


def batches(rank: int, ranks: int, steps: range) -> list[tuple[Tensor, Tensor]]:
    return [part(batch(seed=s), rank, ranks) for s in steps]


# -- the user's hooks on gradients ------------------------------------------------------------------------------------------


def clamp(gradient: Tensor) -> Tensor:
    """Not linear: the result differs when it sees a gradient that is divided or reduced already."""
    return gradient.clamp(-0.01, 0.01)


def clamp_in_place(param: nn.Parameter) -> None:
    param.grad.copy_(clamp(param.grad))


def replace_clamped(param: nn.Parameter) -> None:
    param.grad = clamp(param.grad)


def hook(model: nn.Module, kind: str) -> None:
    for param in model.parameters():
        if kind == "tensor":
            param.register_hook(clamp)
        else:
            param.register_post_accumulate_grad_hook(clamp_in_place if kind == "accumulated" else replace_clamped)


def hooked(rank: int, world_size: int, kind: str, before: bool, overlap: bool) -> Tensor:
    model = mlp()
    if before:
        hook(model, kind)
    optimizer = wrapped(model, overlap=overlap)
    if not before:
        hook(model, kind)
    return train(model, optimizer, batches(rank, world_size, range(4)))


def mean_of_hooked(kind: str) -> Tensor:
    """Every rank's gradient as torch alone computes it with the hook, then their mean."""
    model = mlp()
    optimizer = sgd(model)
    for step in range(4):
        grads = []
        for rank in range(RANKS):
            replica = copy.deepcopy(model)
            hook(replica, kind)
            loss_of(replica, part(batch(seed=step), rank, RANKS)).backward()
            grads.append([p.grad for p in replica.parameters()])
        for param, a, b in zip(model.parameters(), *grads, strict=True):
            param.grad = a / 2 + b / 2
        optimizer.step()
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("before", [True, False], ids=["registered before", "registered after"])
@pytest.mark.parametrize("kind", ["tensor", "accumulated", "replaced"])
def test_a_users_gradient_hook_sees_and_changes_the_local_gradient(kind: str, before: bool, overlap: bool) -> None:
    expected = mean_of_hooked(kind)
    assert error(expected, alone()) > 1e-2, "the hook must bite"
    for result in pool.run(RANKS, hooked, kind, before, overlap):
        assert error(result, expected) < 1e-6


def counted_hooks(rank: int, world_size: int) -> list[int]:
    model = mlp()
    calls = {"tensor": 0, "accumulated": 0, "module": 0}

    def count(kind: str) -> None:
        calls[kind] += 1

    optimizer = wrapped(model)
    model[2].weight.register_hook(lambda g: count("tensor"))
    model[2].weight.register_post_accumulate_grad_hook(lambda p: count("accumulated"))
    model[2].register_full_backward_hook(lambda *args: count("module"))
    train(model, optimizer, batches(rank, world_size, range(3)))
    return list(calls.values())


def test_the_users_hooks_run_once_per_backward() -> None:
    assert pool.run(2, counted_hooks) == [[3, 3, 3]] * 2


def step_hooks(rank: int, world_size: int) -> tuple[list[str], list[bool]]:
    """The order of step hooks, and whether the one before the step sees reduced gradients."""
    model = mlp()
    optimizer = wrapped(model)
    order: list[str] = []
    reduced: list[bool] = []

    def before(opt: Any, args: Any, kwargs: Any) -> None:
        order.append("pre")
        reference = mlp()
        reference.load_state_dict(model.state_dict())
        loss_of(reference, batch(seed=len(order) // 2)).backward()
        reduced.append(
            all(error(p.grad, q.grad) < 1e-5 for p, q in zip(model.parameters(), reference.parameters(), strict=True))
        )

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *args: order.append("post"))
    train(model, optimizer, batches(rank, world_size, range(3)))
    return order, reduced


def test_optimizer_step_hooks_run_once_per_step_around_reduced_gradients() -> None:
    assert pool.run(2, step_hooks) == [(["pre", "post"] * 3, [True] * 3)] * 2


# -- schedulers, optimizers, closures ---------------------------------------------------------------------------------------

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "OneCycleLR": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=8),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=6),
}


def schedule(model: nn.Module, optimizer: Any, name: str, pairs: list) -> tuple[Tensor, list[float], list[str]]:
    rates = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scheduler = SCHEDULERS[name](optimizer)
        for pair in pairs:
            train(model, optimizer, [pair])
            scheduler.step()
            rates.append(optimizer.param_groups[0]["lr"])
    return weights(model), rates, [str(w.message) for w in caught]


def scheduled(rank: int, world_size: int, name: str) -> tuple[Tensor, list[float], list[str]]:
    model = mlp()
    return schedule(model, wrapped(model), name, batches(rank, world_size, range(6)))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_learning_rate_schedulers_work_and_do_not_warn(name: str) -> None:
    model = mlp()
    expected, rates, _ = schedule(model, sgd(model), name, batches(0, 1, range(6)))
    assert len(set(rates)) > 2
    for result, seen, messages in pool.run(2, scheduled, name):
        assert seen == rates and messages == []
        assert error(result, expected) < 1e-6


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD foreach": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, foreach=True),
    "SGD fused": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, fused=True),
    "AdamW foreach": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4, foreach=True),
    "AdamW fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, eps=1e-4, fused=True),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr=1e-2, eps=1e-4),
    "two groups": lambda m: torch.optim.SGD(
        [{"params": m[:2].parameters(), "lr": 0.2}, {"params": m[2:].parameters()}], lr=0.1
    ),
}


def optimized(rank: int, world_size: int, name: str) -> Tensor:
    model = mlp()
    return train(model, wrapped(model, OPTIMIZERS[name](model)), batches(rank, world_size, range(4)))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_foreach_fused_and_other_optimizers_equal_the_single_process(name: str) -> None:
    model = mlp()
    expected = train(model, OPTIMIZERS[name](model), batches(0, 1, range(4)))
    for result in pool.run(2, optimized, name):
        assert error(result, expected) < 1e-5


def lbfgs(model: nn.Module, optimizer: Any, rank: int, ranks: int) -> tuple[Tensor, list[float]]:
    losses = []
    for step in range(3):

        def closure(step: int = step) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, part(batch(seed=step), rank, ranks))
            loss.backward()
            return loss

        losses.append(float(torch.as_tensor(optimizer.step(closure)).detach()))
    return weights(model), losses


def newton(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=6, line_search_fn="strong_wolfe")


def closed(rank: int, world_size: int) -> tuple[Tensor, list[float]]:
    torch.set_default_dtype(torch.float64)
    try:
        model = mlp()
        return lbfgs(model, wrapped(model, newton(model)) if world_size > 1 else newton(model), rank, world_size)
    finally:
        torch.set_default_dtype(torch.float32)


def test_an_lbfgs_closure_equals_the_single_process() -> None:
    expected, losses = closed(0, 1)
    for result, seen in pool.run(2, closed):
        assert seen == pytest.approx(losses, rel=1e-8)
        assert error(result, expected) < 1e-7


# -- state and copies -------------------------------------------------------------------------------------------------------


def round_trip(rank: int, world_size: int, direction: str) -> Tensor:
    """Two steps with one optimizer, then two with another that loaded its state."""
    model = mlp()
    pairs = batches(rank, world_size, range(4))
    if direction == "to plain":
        ours = wrapped(model)
        train(model, ours, pairs[:2])
        state = ours.state_dict()
        ours.close()
        plain = sgd(model)
        plain.load_state_dict(state)
        return train(model, plain, [batch(seed=s) for s in (2, 3)])
    if direction == "from plain":
        plain = sgd(model)
        train(model, plain, [batch(seed=s) for s in (0, 1)])
        state = plain.state_dict()
    else:
        first = wrapped(model)
        train(model, first, pairs[:2])
        state = pickle.loads(pickle.dumps(first.state_dict()))
        first.close()
    second = wrapped(model)
    second.load_state_dict(state)
    return train(model, second, pairs[2:])


@pytest.mark.parametrize("direction", ["to plain", "from plain", "to another"])
def test_the_state_dict_is_the_plain_optimizers(direction: str) -> None:
    for result in pool.run(2, round_trip, direction):
        assert error(result, alone()) < 1e-6


def copied(rank: int, world_size: int, way: str, after: int) -> tuple[Tensor, Tensor, Tensor]:
    """Copy model and optimizer together, train the copy on; weights of the copy, of the original and of both at the fork."""
    model = mlp()
    optimizer = wrapped(model)
    pairs = batches(rank, world_size, range(4))
    fork = train(model, optimizer, pairs[:after]).clone()
    both = (model, optimizer)
    other, its = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
    result = train(other, its, pairs[after:])
    return result, weights(model).clone(), train(model, optimizer, pairs[after:]) - result + fork


@pytest.mark.parametrize("after", [0, 2])
@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_trains_on_by_itself_and_so_does_the_original(way: str, after: int) -> None:
    for result, untouched, fork in pool.run(2, copied, way, after):
        assert error(result, alone()) < 1e-6
        assert error(untouched, alone(after)) < 1e-6
        assert error(untouched, fork) < 1e-6


# -- torch.compile ----------------------------------------------------------------------------------------------------------


def compiled(rank: int, world_size: int, what: str, backend: str) -> tuple[Tensor, int, int, bool]:
    """Weights, collectives of the last step, segments, and whether the first all-reduce started before backward ended."""
    model = mlp()
    optimizer = wrapped(model)
    forward: Any = model
    if what == "model":
        forward = torch.compile(model, backend=backend)
    else:
        forward = nn.Sequential(*(torch.compile(model[i : i + 2], backend=backend) for i in range(0, len(model), 2)))
    for pair in batches(rank, world_size, range(4)):
        with collectives() as log:
            loss_of(forward, pair).backward()
            optimizer.step()
            optimizer.zero_grad()
    last = optimizer.recorder.iterations[-1]
    ready = [at for at in last.ready_s if at is not None]
    return weights(model), len(log), len(optimizer.segments), last.collectives[0].start_s < max(ready)


@pytest.mark.parametrize("what", ["model", "blocks"])
def test_compiled_models_train_as_the_plain_one_and_blocks_keep_the_overlap(what: str) -> None:
    for result, sent, segments, overlaps in pool.run(2, compiled, what, "aot_eager"):
        assert error(result, alone()) < 1e-6
        assert sent == segments == 6
        assert overlaps or what == "model"


@pytest.mark.verify
@pytest.mark.timeout(400)
@pytest.mark.parametrize("what", ["model", "blocks"])
def test_inductor_trains_as_the_plain_model(what: str) -> None:
    for result, sent, segments, overlaps in pool.run(2, compiled, what, "inductor", timeout=300.0):
        assert error(result, alone()) < 1e-5
        assert sent == segments == 6
        assert overlaps or what == "model"
