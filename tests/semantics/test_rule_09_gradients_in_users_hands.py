"""Rule 9: zeroing in every way, replaced gradients, frozen, thawed and added parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradweave as gw
from tests.semantics.helpers import alone, batch, collectives, error, loss_of, mlp, part, same_bits, sgd, weights, wrapped
from tests.support import pool

WAYS = ["to none", "to zero", "model.zero_grad", "model.zero_grad to zero", "grad = None", "grad = tensor", "before backward"]


def clear(way: str, model: nn.Module, optimizer: Any) -> None:
    if way in ("to none", "to zero"):
        optimizer.zero_grad(set_to_none=way == "to none")
    elif way.startswith("model.zero_grad"):
        model.zero_grad(set_to_none=not way.endswith("to zero"))
    else:
        for param in model.parameters():
            param.grad = torch.zeros_like(param) if way == "grad = tensor" else None


def zeroed(rank: int, world_size: int, way: str, overlap: bool) -> Tensor:
    model = mlp()
    optimizer = wrapped(model, overlap=overlap)
    for step in range(4):
        if way == "before backward":
            optimizer.zero_grad()
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.step()
        if way != "before backward":
            clear(way, model, optimizer)
    return weights(model)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_forget_gradients_equals_the_single_process(way: str, overlap: bool) -> None:
    for result in pool.run(2, zeroed, way, overlap):
        assert error(result, alone()) < 1e-6


def never_zeroed(rank: int, world_size: int, options: dict[str, Any]) -> Tensor:
    model = mlp()
    return without_zeroing(model, wrapped(model, **options), rank, world_size)


def without_zeroing(model: nn.Module, optimizer: Any, rank: int, ranks: int) -> Tensor:
    for step in range(4):
        loss_of(model, part(batch(seed=step), rank, ranks)).backward()
        optimizer.step()
    return weights(model)


def five() -> float:
    return 5.0


@pytest.mark.parametrize(
    "options", [{}, {"overlap": False}, {"weight": five}, {"reduce_dtype": torch.float64}], ids=lambda o: "".join(o)
)
def test_gradients_that_are_never_zeroed_add_up_as_in_torch(options: dict[str, Any]) -> None:
    model = mlp()
    expected = without_zeroing(model, sgd(model), 0, 1)
    for result in pool.run(2, never_zeroed, options):
        assert error(result, expected) < 1e-6


class Rows(nn.Module):
    """A table of which each rank looks at a row of its own choice, or at none, and a weight that all use."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=sparse)
        self.always = nn.Parameter(torch.ones(2))

    def forward(self, row: int | None, factor: float) -> Tensor:
        used = self.table(torch.tensor([row])).sum() if row is not None else torch.zeros(())
        return factor * (used + self.always.sum())


def left_on_some_ranks(rank: int, world_size: int, options: dict[str, Any], sparse: bool, held: bool) -> list[Tensor]:
    """All use the table, then nothing is zeroed and one rank alone uses it; the table's gradient after each step."""
    model = Rows(sparse)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model, **options)
    seen, kept = [], []
    for step in range(4):
        row = (rank if step < 2 else 3) if step < 2 or rank == 1 else None
        for _ in range(options.get("accumulate", 1)):
            model(row, 1.0 + rank + step).backward()
        optimizer.step()
        gradient = model.table.weight.grad
        seen.append(gradient.to_dense().clone() if gradient.is_sparse else gradient.clone())
        if held:
            kept.append(gradient.detach())
    return seen


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("options", [{"op": "sum"}, {"accumulate": 2}, {"weight": five}, {}], ids=lambda o: "".join(o))
def test_gradients_left_from_before_stay_equal_when_some_ranks_alone_add_to_them(
    options: dict[str, Any], sparse: bool, held: bool
) -> None:
    scale = 1.0 if options.get("op") == "sum" else 0.5
    expected, total = [], torch.zeros(4, 2)
    for step in range(4):
        for rank in (0, 1):
            if step < 2 or rank == 1:
                total[rank if step < 2 else 3] += scale * (1.0 + rank + step)
        expected.append(total.clone())
    for result in pool.run(2, left_on_some_ranks, options, sparse, held):
        for got, want in zip(result, expected, strict=True):
            torch.testing.assert_close(got, want)


def replaced(rank: int, world_size: int, when: str) -> Tensor:
    """After backward every gradient becomes a new tensor: three times the old one."""
    model = mlp()
    optimizer = wrapped(model)
    for step in range(4):
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        if when == "synchronized":
            optimizer.synchronize()
        for param in model.parameters():
            param.grad = param.grad * 3
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_gradients_replaced_after_synchronize_are_what_the_step_uses() -> None:
    model = mlp()
    optimizer = sgd(model)
    for step in range(4):
        (loss_of(model, batch(seed=step)) * 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    for result in pool.run(2, replaced, "synchronized"):
        assert error(result, weights(model)) < 1e-5


def test_gradients_replaced_while_they_travel_raise() -> None:
    with pytest.raises(gw.StateError, match=r"synchronize\(\)"):
        pool.run(2, replaced, "too early")


def discarded(rank: int, world_size: int, way: str) -> Tensor:
    """In steps 0 and 2 a first batch is thrown away before the step."""
    model = mlp()
    optimizer = wrapped(model)
    for step in range(4):
        if step % 2 == 0:
            loss_of(model, part(batch(seed=100 + step), rank, world_size)).backward()
            clear(way, model, optimizer)
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


@pytest.mark.parametrize("way", ["to none", "to zero", "model.zero_grad", "grad = None"])
def test_a_batch_thrown_away_before_the_step_leaves_no_trace(way: str) -> None:
    for result in pool.run(2, discarded, way):
        assert error(result, alone()) < 1e-6


def held(rank: int, world_size: int) -> list[bool]:
    """Whether gradients that the user kept from every step stay as they were."""
    model = mlp()
    optimizer = wrapped(model)
    kept, copies = [], []
    for step in range(5):
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.synchronize()
        kept.append([p.grad for p in model.parameters()])
        copies.append([p.grad.clone() for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    return [all(map(same_bits, grads, old)) for grads, old in zip(kept, copies, strict=True)]


def test_gradients_that_the_user_holds_are_not_overwritten_by_later_steps() -> None:
    assert pool.run(2, held) == [[True] * 5] * 2


def one_view_held(rank: int, world_size: int) -> bool:
    """The same for a slice of a single gradient."""
    model = mlp()
    optimizer = wrapped(model)
    kept = copy = None
    for step in range(4):
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        optimizer.step()
        if step == 1:
            kept, copy = model[0].weight.grad[2:], model[0].weight.grad[2:].clone()
        optimizer.zero_grad()
    return same_bits(kept, copy)


def test_a_view_of_an_old_gradient_is_not_overwritten() -> None:
    assert pool.run(2, one_view_held) == [True, True]


# -- frozen, thawed, added --------------------------------------------------------------------------------------------------


def frozen_between(model: nn.Module, optimizer: Any, rank: int, ranks: int) -> Tensor:
    """The middle layer rests in steps 1 and 2."""
    for step in range(5):
        model[2].requires_grad_(step not in (1, 2))
        loss_of(model, part(batch(seed=step), rank, ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def frozen_distributed(rank: int, world_size: int) -> Tensor:
    model = mlp()
    return frozen_between(model, wrapped(model), rank, world_size)


def test_freezing_and_thawing_between_steps_equals_the_single_process() -> None:
    model = mlp()
    expected = frozen_between(model, sgd(model), 0, 1)
    for result in pool.run(2, frozen_distributed):
        assert error(result, expected) < 1e-6


def frozen_bytes(rank: int, world_size: int, freeze: bool) -> tuple[int, int]:
    """Collectives and their bytes in one step."""
    model = mlp(width=64)
    model[0].requires_grad_(not freeze)
    optimizer = wrapped(model)
    for step in range(3):
        with collectives() as log:
            loss_of(model, batch(width=64, seed=step)).backward()
            optimizer.step()
        optimizer.zero_grad()
    return len(log), sum(size for _, size in log)


def test_frozen_parameters_cost_nothing() -> None:
    (all_count, all_bytes), (count, size) = (pool.run(2, frozen_bytes, freeze)[0] for freeze in (False, True))
    assert (all_count, count) == (6, 4)
    assert all_bytes - size == 4 * (64 * 64 + 64) + 4 * 2, "two gradients and their two flags"


def thawed(rank: int, world_size: int, refresh: bool) -> Tensor:
    model = mlp()
    model[0].requires_grad_(False)
    optimizer = wrapped(model, strategy="default")
    return thaw_loop(model, optimizer, rank, world_size, optimizer.refresh if refresh else None)


def thaw_loop(model: nn.Module, optimizer: Any, rank: int, ranks: int, refresh: Any) -> Tensor:
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
            if refresh is not None:
                refresh()
        loss_of(model, part(batch(seed=step), rank, ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def test_a_frozen_parameter_that_starts_to_train_raises_and_names_refresh() -> None:
    with pytest.raises(gw.StateError, match=r"'0.weight', '0.bias'.* were frozen when wrapped.*refresh\(\)"):
        pool.run(2, thawed, False)


def test_after_refresh_a_thawed_parameter_trains() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    expected = thaw_loop(model, sgd(model), 0, 1, None)
    for result in pool.run(2, thawed, True):
        assert error(result, expected) < 1e-6


def grown(rank: int, world_size: int) -> Tensor:
    model = mlp()
    inner = torch.optim.SGD(model[:4].parameters(), lr=0.1, momentum=0.9)
    return growing(model, gw.DistributedOptimizer(inner, model), rank, world_size)


def growing(model: nn.Module, optimizer: Any, rank: int, ranks: int) -> Tensor:
    """The last layer joins the optimizer in step 2."""
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 0.05})
        loss_of(model, part(batch(seed=step), rank, ranks)).backward()
        optimizer.step()
        model.zero_grad()
    return weights(model)


def test_add_param_group_reduces_and_trains_the_new_parameters() -> None:
    model = mlp()
    expected = growing(model, torch.optim.SGD(model[:4].parameters(), lr=0.1, momentum=0.9), 0, 1)
    for result in pool.run(2, grown):
        assert error(result, expected) < 1e-6


def smuggled(rank: int, world_size: int) -> None:
    model = mlp()
    inner = torch.optim.SGD(model[:4].parameters(), lr=0.1)
    optimizer = gw.DistributedOptimizer(inner, model)
    inner.add_param_group({"params": list(model[4].parameters())})
    loss_of(model, batch()).backward()
    optimizer.step()


def test_parameters_added_behind_the_wrapper_raise_and_name_the_call() -> None:
    with pytest.raises(gw.StateError, match=r"2 parameters were added.*add_param_group"):
        pool.run(2, smuggled)


def converted(rank: int, world_size: int) -> None:
    model = mlp()
    optimizer = wrapped(model)
    for step in range(2):
        x, y = batch(seed=step)
        if step:
            model.double()
            x, y = x.double(), y.double()
        loss_of(model, (x, y)).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_model_converted_after_wrapping_raises_and_says_what_to_do() -> None:
    with pytest.raises(
        gw.StateError, match=r"was \(8.*float32.*its gradient is .*float64.*before wrapping it, or wrap it anew"
    ):
        pool.run(2, converted)
