"""Where a backward begins and ends: plain, nested, for `torch.autograd.grad`, broken off."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.checkpoint import checkpoint

from gradweave.sync.backward import BackwardTracker, current_task, in_backward


class Owner:
    """Notes what its tracker and its leaf hooks see, as an engine would."""

    def __init__(self, model: nn.Module) -> None:
        self.log: list[str] = []
        self.tracker = BackwardTracker(self.started, self.ended)
        self.fails = self.abandons = False
        self.nodes = [get_gradient_edge(p).node for p in model.parameters()]
        for node in self.nodes:
            node.register_prehook(self.leaf)

    def started(self) -> None:
        self.log.append("start")

    def ended(self) -> None:
        self.log.append("end")

    def leaf(self, gradients: tuple[Tensor | None, ...]) -> None:
        if self.tracker.task != current_task():
            self.tracker.see()
        self.log.append("leaf")
        if self.fails:
            raise ArithmeticError("mine")
        if self.abandons:
            self.tracker.abandon()

    def announced(self, output: Tensor) -> Tensor:
        if output.requires_grad:
            output.register_hook(lambda _: self.tracker.announce())
        return output

    @property
    def events(self) -> list[str]:
        """Starts, ends and leaves, runs of leaves as one."""
        return [event for nth, event in enumerate(self.log) if event != "leaf" or self.log[nth - 1] != "leaf"]


class Checkpointed(nn.Module):
    """Layers of which some run in a re-entrant checkpoint, whose backward nests another."""

    def __init__(self, inside: tuple[bool, ...]) -> None:
        super().__init__()
        self.layers, self.inside = nn.ModuleList(nn.Linear(2, 2) for _ in inside), inside

    def forward(self, x: Tensor) -> Tensor:
        for layer, inside in zip(self.layers, self.inside, strict=True):
            x = checkpoint(layer, x, use_reentrant=True) if inside else layer(x)
        return x


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))


@pytest.fixture
def owner(model: nn.Module) -> Iterator[Owner]:
    made = Owner(model)
    yield made
    assert not made.tracker.running, "a test leaves no backward open"


def x() -> Tensor:
    return torch.ones(1, 2, requires_grad=True)


def test_a_backward_starts_before_its_first_leaf_and_ends_behind_its_last(model: nn.Module, owner: Owner) -> None:
    model(x()).sum().backward()
    assert owner.log == ["start", "leaf", "leaf", "leaf", "leaf", "end"]


@pytest.mark.parametrize("announces", [True, False])
def test_each_backward_is_told_once(model: nn.Module, owner: Owner, announces: bool) -> None:
    for _ in range(2):
        output = model(x())
        (owner.announced(output) if announces else output).sum().backward()
    assert owner.events == ["start", "leaf", "end"] * 2


def test_a_graph_that_is_kept_may_be_walked_twice(model: nn.Module, owner: Owner) -> None:
    loss = owner.announced(model(x())).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert owner.events == ["start", "leaf", "end"] * 2


def test_it_runs_from_start_to_end_only(model: nn.Module, owner: Owner) -> None:
    seen: list[bool] = []
    owner.nodes[0].register_prehook(lambda _: seen.append(owner.tracker.running))
    assert not owner.tracker.running
    model(x()).sum().backward()
    assert seen == [True] and not owner.tracker.running and owner.tracker.task == -1


def test_autograd_grad_starts_and_ends_nothing(model: nn.Module, owner: Owner) -> None:
    given = x()
    output = owner.announced(model(given))
    torch.autograd.grad(output.sum(), given, create_graph=True)
    torch.autograd.grad(output.sum(), list(model.parameters()))
    assert owner.log == [] and not owner.tracker.running


def test_a_backward_after_autograd_grad_is_told_once(model: nn.Module, owner: Owner) -> None:
    given = x()
    (gradient,) = torch.autograd.grad(owner.announced(model(given)).sum(), given, create_graph=True)
    (owner.announced(model(given)).sum() + gradient.square().sum()).backward()
    assert owner.events == ["start", "leaf", "end"]


@pytest.mark.parametrize("inside", [(True, True), (True, False), (False, True), (True, False, True), (False, True, False)])
def test_nested_backwards_are_one_where_the_output_is_seen(inside: tuple[bool, ...]) -> None:
    model = Checkpointed(inside)
    owner = Owner(model)
    for _ in range(2):
        owner.announced(model(x())).sum().backward()
    assert owner.events == ["start", "leaf", "end"] * 2 and not owner.tracker.blind


@pytest.mark.parametrize("inside", [(True, False), (False, True), (False, True, True), (True, False, True)])
def test_nested_backwards_are_one_where_a_leaf_lies_outside(inside: tuple[bool, ...]) -> None:
    model = Checkpointed(inside)
    owner = Owner(model)
    for _ in range(2):
        model(x()).sum().backward()
    assert owner.events == ["start", "leaf", "end"] * 2 and not owner.tracker.running


def test_an_output_inside_a_checkpoint_is_not_taken_for_the_outermost() -> None:
    inner, outer = nn.Linear(2, 2), nn.Linear(2, 2)
    owner = Owner(nn.Sequential(inner, outer))
    outer(checkpoint(lambda given: owner.announced(inner(given)), x(), use_reentrant=True)).sum().backward()
    assert owner.events == ["start", "leaf", "end"]


def test_it_is_not_blind_where_the_output_is_seen() -> None:
    model = Checkpointed((True, True))
    owner = Owner(model)
    blind: list[bool] = []
    owner.nodes[0].register_prehook(lambda _: blind.append(owner.tracker.blind))
    owner.announced(model(x())).sum().backward()
    assert blind == [False]


def test_autograd_grad_inside_a_backward_is_no_end_of_it(model: nn.Module, owner: Owner) -> None:
    def differentiate(_: Tensor) -> None:
        with torch.enable_grad():
            given = x()
            torch.autograd.grad(owner.announced(model(given)).sum(), given)

    model[0].weight.register_hook(differentiate)
    owner.announced(model(x())).sum().backward()
    assert owner.events == ["start", "leaf", "end"]


def test_it_says_that_it_is_blind_where_every_leaf_lies_in_a_nested_backward() -> None:
    model = Checkpointed((True, True))
    owner = Owner(model)
    model(x()).sum().backward()
    assert owner.events == ["start", "leaf"] and owner.tracker.blind and owner.tracker.running
    owner.tracker.abandon()
    assert not owner.tracker.blind and not owner.tracker.running


@pytest.mark.parametrize("announces", [True, False])
def test_a_backward_after_one_that_raised_starts_anew_and_ends_once(model: nn.Module, owner: Owner, announces: bool) -> None:
    def loss() -> Tensor:
        output = model(x())
        return (owner.announced(output) if announces else output).sum()

    owner.fails = True
    with pytest.raises(ArithmeticError):
        loss().backward()
    assert owner.log == ["start", "leaf"]
    owner.fails = False
    loss().backward()
    assert owner.events == ["start", "leaf", "start", "leaf", "end"]


def test_an_abandoned_backward_has_no_end() -> None:
    model = nn.Linear(2, 1, bias=False)
    owner = Owner(model)
    owner.abandons = True
    model(x()).sum().backward()
    assert owner.log == ["start", "leaf"] and not owner.tracker.running


def test_the_tracker_does_not_keep_its_owner_alive(model: nn.Module) -> None:
    class Bare:
        """Counts what it is told."""

        def __init__(self, log: list[str]) -> None:
            self.log = log

        def told(self) -> None:
            self.log.append("told")

    log: list[str] = []
    owner = Bare(log)
    tracker, seen = BackwardTracker(owner.told, owner.told), weakref.ref(owner)
    model[0].weight.register_hook(lambda _: tracker.see())
    model(x()).sum().backward()
    assert log == ["told", "told"]
    del owner
    gc.collect()
    assert seen() is None
    model(x()).sum().backward()
    assert log == ["told", "told"] and not tracker.running


def test_in_backward_is_true_inside_and_false_outside(model: nn.Module) -> None:
    seen: list[bool] = []
    model[0].weight.register_hook(lambda _: seen.append(in_backward()))
    model(x()).sum().backward()
    assert seen == [True] and not in_backward()
