"""A model whose compute is a sleep: an accelerator's timing, real gradients.

Forward and backward sleep, layer by layer, for the layer's share of the step; backward hands out gradients of the real (scaled)
sizes. What is measured is what communication adds. Backward of a layer takes twice its forward, as multiplications say.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.lab.models import Layer, scaled_numels

_SHORTEST_S = 0.0005


class _Work(torch.autograd.Function):
    """Sleeps; in backward returns the gradients that were prepared."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: _Pace, forward_s: float, backward_s: float, *params: Tensor) -> Tensor:
        pace.sleep(forward_s)
        ctx.pace, ctx.backward_s, ctx.params = pace, backward_s, params
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        ctx.pace.sleep(ctx.backward_s)
        return gradient, None, None, None, *(ctx.pace.gradient(param) for param in ctx.params)


class _Pace:
    """Keeps to a clock: short sleeps are saved up, so that the sum is right."""

    def __init__(self) -> None:
        self._owed = 0.0
        self._gradients: dict[int, Tensor] = {}

    def sleep(self, seconds: float) -> None:
        self._owed += seconds
        if self._owed > _SHORTEST_S:
            begin = time.perf_counter()
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - begin

    def gradient(self, param: Tensor) -> Tensor:
        if id(param) not in self._gradients:
            self._gradients[id(param)] = torch.full_like(param, 1e-3)
        return self._gradients[id(param)]


class Paced(nn.Module):
    """A model of layers that sleep.

    Args:
        layers: shapes and work.
        scale: every parameter has this share of its elements.
        step_s: forward and backward together, without communication.
    """

    def __init__(self, layers: list[Layer], scale: float, step_s: float) -> None:
        super().__init__()
        self.params = nn.ParameterList(nn.Parameter(torch.zeros(n)) for row in scaled_numels(layers, scale) for n in row)
        total = sum(layer.work for layer in layers)
        self._forward_s = [step_s / 3 * layer.work / total for layer in layers]
        counts = [len(layer.shapes) for layer in layers]
        self._slices = [(sum(counts[:k]), sum(counts[: k + 1])) for k in range(len(counts))]
        self._pace = _Pace()

    def forward(self, x: Tensor) -> Tensor:
        """Sleep through all layers."""
        for seconds, (first, stop) in zip(self._forward_s, self._slices, strict=True):
            x = _Work.apply(x, self._pace, seconds, 2 * seconds, *[self.params[k] for k in range(first, stop)])
        return x
