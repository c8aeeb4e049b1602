"""An optimizer's state as something that can be broadcast.

A rank that has taken no step has no state, so shapes cannot be compared: the root sends an outline first, and the others make
what they miss.

    1. all ranks agree on the parameter groups (numbers of parameters, shapes)
    2. the root's outline: state and settings with (shape, dtype, device) in the place of tensors
    3. other ranks: reuse their own tensor where it fits, else an empty one;    4. tensors travel;    5. the result is adopted

Cost: one exchange of objects of the size of the settings, then the state's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from gradweave.collectives.runtime import wire
from gradweave.world.agree import agree
from gradweave.world.failures import reported
from gradweave.world.groups import Group, control_group


@dataclass(frozen=True)
class Outline:
    """A tensor's place in the outline; `is_on_host` keeps step counters on the CPU."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    is_on_host: bool


def adopt_optimizer(optimizer: Optimizer, root: int, group: Group, check: bool) -> tuple[list[Tensor], Callable[[], None]]:
    """The tensors of the root's state, to be broadcast, and a function that then puts them into the optimizer.

    Raises:
        MismatchError: ranks have different parameter groups.
    """
    if check:
        agree({"root": root, "parameter groups": _parameters(optimizer)}, "the arguments of broadcast", group)
    mine = _contents(optimizer)
    if group.rank == root:
        sent: list[Any] = [_outline(mine)]
    else:
        sent = [None]
    if group.size > 1:
        with reported("broadcast of an optimizer's outline", group.name, group.pg):
            dist.broadcast_object_list(sent, src=group.ranks[root], group=control_group(group))
    devices = [p.device for g in optimizer.param_groups for p in g["params"]]
    filled = mine if group.rank == root else _fill(sent[0], mine, devices)
    tensors: list[Tensor] = []
    _collect(filled, tensors)
    return tensors, lambda: None if group.rank == root else _adopt(optimizer, filled)


def _parameters(optimizer: Optimizer) -> list[list[str]]:
    return [[wire.describe(p, "") for p in g["params"]] for g in optimizer.param_groups]


def _contents(optimizer: Optimizer) -> dict[str, Any]:
    """State by parameter position, and settings by group position."""
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    state = {index: dict(optimizer.state[p]) for index, p in enumerate(parameters) if optimizer.state.get(p)}
    settings = [{key: value for key, value in g.items() if key != "params"} for g in optimizer.param_groups]
    return {"state": state, "settings": settings}


def _outline(x: Any) -> Any:
    if isinstance(x, Tensor):
        return Outline(tuple(x.shape), x.dtype, x.device.type == "cpu")
    if isinstance(x, dict):
        return {key: _outline(value) for key, value in x.items()}
    return type(x)(_outline(value) for value in x) if type(x) in (list, tuple) else x


def _fill(outline: Any, mine: dict[str, Any], devices: list[torch.device]) -> dict[str, Any]:
    """The outline with tensors: this rank's own where it fits."""
    state = {index: _fill_part(part, mine["state"].get(index), devices[index]) for index, part in outline["state"].items()}
    cpu = torch.device("cpu")
    settings = [_fill_part(part, own, cpu) for part, own in zip(outline["settings"], mine["settings"], strict=True)]
    return {"state": state, "settings": settings}


def _fill_part(outline: Any, own: Any, device: torch.device) -> Any:
    if isinstance(outline, Outline):
        if isinstance(own, Tensor) and tuple(own.shape) == outline.shape and own.dtype == outline.dtype:
            return own
        place = torch.device("cpu") if outline.is_on_host else device
        return torch.empty(outline.shape, dtype=outline.dtype, device=place)
    if isinstance(outline, dict):
        kept = own if isinstance(own, dict) else {}
        return {key: _fill_part(value, kept.get(key), device) for key, value in outline.items()}
    if type(outline) in (list, tuple):
        beside = own if isinstance(own, (list, tuple)) and len(own) == len(outline) else [None] * len(outline)
        return type(outline)(_fill_part(value, o, device) for value, o in zip(outline, beside, strict=True))
    return outline


def _collect(x: Any, tensors: list[Tensor]) -> None:
    if isinstance(x, Tensor):
        tensors.append(x)
    elif isinstance(x, dict):
        for value in x.values():
            _collect(value, tensors)
    elif type(x) in (list, tuple):
        for value in x:
            _collect(value, tensors)


def _adopt(optimizer: Optimizer, filled: dict[str, Any]) -> None:
    parameters = [p for g in optimizer.param_groups for p in g["params"]]
    for index, parameter in enumerate(parameters):
        if index in filled["state"]:
            optimizer.state[parameter] = filled["state"][index]
        else:
            optimizer.state.pop(parameter, None)
    for group, settings in zip(optimizer.param_groups, filled["settings"], strict=True):
        group.update(settings)
