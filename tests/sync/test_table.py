"""The parameters of an engine: one slot each, tied ones once, frozen ones remembered, strange ones refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gradweave.errors import ConfigError
from gradweave.model import GradientInfo
from gradweave.sync.table import ParameterTable, Slot


def param(*shape: int, dtype: torch.dtype = torch.float32, trains: bool = True) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=trains)


def test_slots_come_in_registration_order() -> None:
    table = ParameterTable(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).named_parameters())
    assert [slot.name for slot in table.slots] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [slot.pid for slot in table.slots] == [0, 1, 2, 3]
    assert all(table.by_id[id(slot.param)] is slot for slot in table.slots)


def test_a_tied_parameter_is_one_slot_under_its_first_name() -> None:
    tied = param(2)
    table = ParameterTable([("embedding", tied), ("other", param(1)), ("head", tied)])
    assert [slot.name for slot in table.slots] == ["embedding", "other"]


def test_frozen_parameters_are_remembered_but_have_no_slot() -> None:
    frozen = param(2, trains=False)
    table = ParameterTable([("a", frozen), ("b", param(1))])
    assert table.frozen == [("a", frozen)] and [slot.name for slot in table.slots] == ["b"]
    assert id(frozen) in table.known and id(frozen) not in table.by_id


@pytest.mark.parametrize(
    ("named", "what"),
    [
        (lambda: [], "none of 0 parameters requires a gradient"),
        (lambda: [("a", param(2, trains=False))], "none of 1 parameters requires a gradient"),
        (lambda: [("a", param(2)), ("a", param(2))], "two parameters are named 'a'"),
        (lambda: [("a", param(2, trains=False)), ("a", param(2))], "two parameters are named 'a'"),
        (lambda: [("a", nn.UninitializedParameter())], "parameter 'a' is not initialised"),
        (lambda: [("a", [1.0])], "'a' is a list"),
        (lambda: [("a", param(2) * 2)], "'a' is not a leaf tensor"),
    ],
)
def test_a_strange_parameter_is_refused_by_its_name(named: Callable[[], list], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ParameterTable(named())
    assert caught.value.what == what and caught.value.rule and caught.value.fix


def test_a_gradient_is_described_by_plain_values() -> None:
    assert Slot(0, "w", param(2, 3, dtype=torch.bfloat16)).info == GradientInfo("w", (2, 3), "bfloat16", 12)


def test_reset_forgets_the_window_and_keeps_what_was_learned() -> None:
    slot = Slot(4, "w", param(2))
    slot.expected, slot.pos, slot.sparse, slot.hooked = 2, 1, True, True
    slot.fires = slot.sequence = 3
    slot.used = slot.divided = slot.ready = slot.launched = True
    slot.leftover = torch.ones(2)
    slot.reset()
    assert (slot.fires, slot.sequence, slot.used, slot.divided, slot.ready, slot.launched) == (0, 0, False, False, False, False)
    assert slot.leftover is None
    assert (slot.pid, slot.expected, slot.pos, slot.sparse, slot.hooked) == (4, 2, 1, True, True)


def test_devices_are_those_of_trained_parameters() -> None:
    there = nn.Parameter(torch.zeros(2, device="meta"), requires_grad=False)
    assert ParameterTable([("a", param(1)), ("b", there)]).devices == {torch.device("cpu")}


def test_models_built_alike_have_the_same_fingerprint() -> None:
    one, other = (ParameterTable(nn.Linear(2, 3).named_parameters()) for _ in range(2))
    assert one.fingerprint() == other.fingerprint()


@pytest.mark.parametrize(
    "other",
    [
        [("w", param(3, 2)), ("b", param(1))],
        [("v", param(2, 3)), ("b", param(1))],
        [("w", param(2, 3, dtype=torch.float64)), ("b", param(1))],
        [("w", nn.Parameter(torch.zeros(3, 2).t())), ("b", param(1))],
        [("w", param(2, 3)), ("b", param(1, trains=False))],
        [("b", param(1)), ("w", param(2, 3))],
    ],
    ids=["shape", "name", "dtype", "strides", "frozen", "order"],
)
def test_models_that_differ_have_different_fingerprints(other: list[tuple[str, nn.Parameter]]) -> None:
    assert ParameterTable(other).fingerprint() != ParameterTable([("w", param(2, 3)), ("b", param(1))]).fingerprint()
