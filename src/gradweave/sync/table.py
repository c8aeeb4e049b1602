"""The parameters an engine serves, and what it knows of each.

One `Slot` per parameter that requires a gradient; a parameter shared by several modules (tied weights) is one slot. Frozen
parameters are remembered only to notice when they start to train.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradweave.errors import ConfigError
from gradweave.model import GradientInfo


class Slot:
    """State of one gradient.

    `pid` is its place in registration order (never changes), `pos` its index in order of generation. `view` is where it lies in
    the flat buffer, `expected` how often it fires in one backward (more than once with reentrant checkpointing), `hooked` says
    that the user has post-accumulate hooks on it.
    """

    __slots__ = (
        "bucket",
        "divided",
        "dtype",
        "expected",
        "fires",
        "hooked",
        "launched",
        "leftover",
        "name",
        "node",
        "param",
        "place",
        "pid",
        "pos",
        "ptr",
        "ready",
        "sequence",
        "sparse",
        "used",
        "version",
        "view",
    )

    def __init__(self, pid: int, name: str, param: torch.nn.Parameter) -> None:
        self.pid, self.pos, self.name, self.param = pid, -1, name, param
        self.dtype = param.dtype
        self.node: object = None
        self.view: Tensor | None = None
        self.ptr = -1
        self.bucket = self.place = -1
        self.sparse = self.hooked = False
        self.expected = 1
        self.reset()

    def reset(self) -> None:
        """Forget the window: nothing fired, nothing reduced."""
        self.fires = self.sequence = 0
        self.used = self.divided = self.ready = self.launched = False
        self.leftover: Tensor | None = None
        self.version = -1

    @property
    def info(self) -> GradientInfo:
        """The gradient's plain description."""
        param = self.param
        return GradientInfo(
            self.name, tuple(param.shape), str(param.dtype).removeprefix("torch."), param.numel() * param.element_size()
        )


class ParameterTable:
    """All parameters of one wrapper, in registration order.

    Args:
        named: pairs of unique name and parameter; the same parameter may come twice (tied), the first name counts.

    Raises:
        ConfigError: no parameter at all, a duplicate name, a lazy parameter that has no shape yet.
    """

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
        self.slots: list[Slot] = []
        self.frozen: list[tuple[str, torch.nn.Parameter]] = []
        self.by_id: dict[int, Slot] = {}
        names: set[str] = set()
        seen: set[int] = set()
        for name, param in named:
            if id(param) in seen:
                continue
            self._check(name, param, names)
            seen.add(id(param))
            names.add(name)
            if param.requires_grad:
                self.slots.append(Slot(len(self.slots), name, param))
                self.by_id[id(param)] = self.slots[-1]
            else:
                self.frozen.append((name, param))
        self.known = seen
        if not self.slots:
            raise ConfigError(
                f"none of {len(self.frozen)} parameters requires a gradient",
                rule="something is trained",
                fix="unfreeze parameters before wrapping the optimizer",
            )

    @staticmethod
    def _check(name: str, param: object, names: set[str]) -> None:
        if not isinstance(param, Tensor):
            raise ConfigError(
                f"{name!r} is a {type(param).__name__}", rule="parameters are tensors", fix="pass model.named_parameters()"
            )
        if isinstance(param, torch.nn.parameter.UninitializedParameter):
            raise ConfigError(
                f"parameter {name!r} is not initialised",
                rule="every parameter has a shape",
                fix="run one forward pass before wrapping",
            )
        if name in names:
            raise ConfigError(
                f"two parameters are named {name!r}", rule="names are unique", fix="pass model.named_parameters()"
            )
        if param.requires_grad and not param.is_leaf:
            raise ConfigError(
                f"{name!r} is not a leaf tensor", rule="parameters are leaves", fix="pass the model's parameters themselves"
            )

    @property
    def devices(self) -> set[torch.device]:
        """Where the gradients lie."""
        return {slot.param.device for slot in self.slots}

    def fingerprint(self) -> list[str]:
        """One line per parameter, equal on all ranks that built the same model."""
        lines = [f"{s.name} {tuple(s.param.shape)} {s.dtype} strides={tuple(s.param.stride())} trains" for s in self.slots]
        return lines + [f"{name} {tuple(p.shape)} {p.dtype} frozen" for name, p in self.frozen]
