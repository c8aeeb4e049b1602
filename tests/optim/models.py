"""What the tests of the drop-in share: two small models, per-rank inputs, gradients as lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Two layers, of which a forward uses those named in `use`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor, use: str = "ab") -> Tensor:
        return sum((getattr(self, name)(x) for name in use), torch.zeros(()))  # type: ignore[return-value]


class Normed(nn.Module):
    """A linear layer and batch-norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.layer(x))
        return out


def inputs(rank: int, seed: int = 0, rows: int = 4) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(100 * seed + rank))


def gradients(model: nn.Module) -> list[list[float] | None]:
    return [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]


def flat(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def same(ours: list[Any], theirs: list[Any]) -> None:
    """Gradients per parameter, None included."""
    assert [g is None for g in ours] == [g is None for g in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a is None or a == pytest.approx(b, rel=1e-5, abs=1e-7)
