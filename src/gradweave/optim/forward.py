"""Seeing the model's forward: where it begins, where it ends, what it returns.

The hooks hold the engine weakly. A copied or pickled model gets hooks that do nothing: its gradients are nobody's but its own.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from gradweave.optim.naming import find_tensors
from gradweave.sync import Engine


class ForwardBegins:
    """Forward pre-hook: tells the engine that forward begins."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = None if engine is None else weakref.ref(engine)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()

    def _live(self) -> Engine | None:
        return None if self._engine is None or torch.compiler.is_compiling() else self._engine()

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        """See `torch.nn.Module.register_forward_pre_hook`."""
        engine = self._live()
        if engine is not None:
            engine.forward_started()


class ForwardEnds(ForwardBegins):
    """Forward hook: shows the engine the outputs."""

    def __call__(self, module: torch.nn.Module, args: Any, output: Any = None) -> None:
        """See `torch.nn.Module.register_forward_hook`."""
        engine = self._live()
        if engine is not None:
            engine.forward_ended(find_tensors(output))


def watch_forward(model: torch.nn.Module, engine: Engine) -> list[Any]:
    """Hang both hooks on the model; returns their handles."""
    return [model.register_forward_pre_hook(ForwardBegins(engine)), model.register_forward_hook(ForwardEnds(engine))]
