"""The hooks on a parameter: around the accumulation, behind the user's own, gone when the engine goes."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradweave.sync import hooks as hooks_module
from gradweave.sync.hooks import Hooks
from gradweave.sync.table import ParameterTable


class Engine:
    """What hooks know of an engine."""

    def __init__(self, model: nn.Module) -> None:
        self.table = ParameterTable(model.named_parameters())
        self.log: list[tuple[str, str, bool]] = []
        self.instead: Tensor | None = None


@pytest.fixture(autouse=True)
def _notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hot path only notes that it was called, for which gradient, and whether `.grad` was there."""

    def before(engine: Engine, slot: Any, gradients: Any) -> Any:
        engine.log.append(("before", slot.name, slot.param.grad is not None))
        return None if engine.instead is None else (engine.instead,)

    def after(engine: Engine, slot: Any, param: nn.Parameter) -> None:
        assert param is slot.param
        engine.log.append(("after", slot.name, param.grad is not None))

    monkeypatch.setattr(hooks_module, "ready", SimpleNamespace(before=before, after=after))


@pytest.fixture
def model() -> nn.Linear:
    return nn.Linear(2, 1, bias=False)


@pytest.fixture
def engine(model: nn.Linear) -> Engine:
    return Engine(model)


@pytest.fixture
def hooks(engine: Engine) -> Hooks:
    made = Hooks(engine)  # type: ignore[arg-type]
    made.attach(engine.table.slots)
    return made


def backward(model: nn.Module) -> None:
    model(torch.ones(1, 2)).sum().backward()


def test_a_gradient_is_seen_before_and_after_it_is_accumulated(model: nn.Linear, engine: Engine, hooks: Hooks) -> None:
    backward(model)
    assert engine.log == [("before", "weight", False), ("after", "weight", True)]


def test_every_parameter_has_its_own_pair_of_hooks() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    engine = Engine(model)
    hooks = Hooks(engine)  # type: ignore[arg-type]
    hooks.attach(engine.table.slots)
    backward(model)
    expected = {(when, name, when == "after") for name, _ in model.named_parameters() for when in ("before", "after")}
    assert set(engine.log) == expected and len(engine.log) == 8


def test_what_comes_before_may_take_the_gradients_place(model: nn.Linear, engine: Engine, hooks: Hooks) -> None:
    engine.instead = torch.full((1, 2), 7.0)
    backward(model)
    assert model.weight.grad.tolist() == [[7.0, 7.0]]


def test_autograd_grad_does_not_pass_here(model: nn.Linear, engine: Engine, hooks: Hooks) -> None:
    torch.autograd.grad(model(torch.ones(1, 2)).sum(), model.weight)
    assert engine.log == []


class TestOrder:
    """The engine's hook runs behind the user's, whenever the user registered it."""

    @pytest.fixture
    def order(self, model: nn.Linear, engine: Engine, hooks: Hooks) -> list[str]:
        """The order in which hooks ran; the user's is registered behind the engine's."""
        model.weight.register_post_accumulate_grad_hook(lambda _: engine.log.append(("user", "weight", True)))
        return []

    def run(self, model: nn.Linear, engine: Engine) -> list[str]:
        engine.log.clear()
        backward(model)
        return [when for when, _, _ in engine.log]

    def test_a_later_hook_would_run_behind_the_engines(self, model: nn.Linear, engine: Engine, order: list[str]) -> None:
        assert self.run(model, engine) == ["before", "after", "user"]

    def test_stay_last_moves_the_engines_behind_it(
        self, model: nn.Linear, engine: Engine, hooks: Hooks, order: list[str]
    ) -> None:
        hooks.stay_last(engine.table.slots)
        assert self.run(model, engine) == ["before", "user", "after"]
        hooks.stay_last(engine.table.slots)
        assert self.run(model, engine) == ["before", "user", "after"]

    def test_a_second_later_hook_is_overtaken_too(
        self, model: nn.Linear, engine: Engine, hooks: Hooks, order: list[str]
    ) -> None:
        hooks.stay_last(engine.table.slots)
        model.weight.register_post_accumulate_grad_hook(lambda _: engine.log.append(("second", "weight", True)))
        hooks.stay_last(engine.table.slots)
        assert self.run(model, engine) == ["before", "user", "second", "after"]

    def test_detach_after_a_move_leaves_the_users_hook_alone(
        self, model: nn.Linear, engine: Engine, hooks: Hooks, order: list[str]
    ) -> None:
        hooks.stay_last(engine.table.slots)
        hooks.detach()
        assert self.run(model, engine) == ["user"]


def test_a_slot_knows_whether_the_user_has_hooks_of_his_own(model: nn.Linear, engine: Engine, hooks: Hooks) -> None:
    (slot,) = engine.table.slots
    hooks.stay_last([slot])
    assert slot.hooked is False
    handle = model.weight.register_post_accumulate_grad_hook(lambda _: None)
    hooks.stay_last([slot])
    assert slot.hooked is True
    handle.remove()
    hooks.stay_last([slot])
    assert slot.hooked is False


def test_a_hook_that_is_last_already_is_not_registered_again(engine: Engine, hooks: Hooks) -> None:
    before = list(hooks._after_handles)
    hooks.stay_last(engine.table.slots)
    assert hooks._after_handles[0] is before[0]


def test_detach_leaves_a_plain_parameter(model: nn.Linear, engine: Engine, hooks: Hooks) -> None:
    hooks.detach()
    hooks.detach()
    backward(model)
    assert engine.log == [] and not model.weight._post_accumulate_grad_hooks
    assert model.weight.grad.tolist() == [[1.0, 1.0]]


def test_hooks_of_an_engine_that_is_gone_do_nothing(model: nn.Linear) -> None:
    engine = Engine(model)
    log, slots = engine.log, engine.table.slots
    hooks = Hooks(engine)  # type: ignore[arg-type]
    hooks.attach(slots)
    del engine
    gc.collect()
    backward(model)
    assert log == [] and model.weight.grad.tolist() == [[1.0, 1.0]]


def test_the_accumulator_lives_as_long_as_its_slot(model: nn.Linear, engine: Engine, hooks: Hooks) -> None:
    gc.collect()
    assert torch.autograd.graph.get_gradient_edge(model.weight).node is engine.table.slots[0].node
