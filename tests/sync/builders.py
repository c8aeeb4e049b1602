"""What the parts of the engine are built from: slots of parameters, descriptions of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradweave.model import GradientInfo
from gradweave.sync.table import ParameterTable, Slot


def slots(*tensors: Tensor, sparse: Sequence[int] = ()) -> list[Slot]:
    """One slot per tensor, named "p0", "p1", ... in the order given."""
    table = ParameterTable((f"p{nth}", torch.nn.Parameter(tensor)) for nth, tensor in enumerate(tensors))
    for nth in sparse:
        table.slots[nth].sparse = True
    return table.slots


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A contiguous tensor; no shape is a scalar."""
    return torch.zeros(shape, dtype=dtype)


def infos(*sizes_bytes: int) -> list[GradientInfo]:
    """float32 gradients named "p0", "p1", ... of so many bytes."""
    return [GradientInfo(f"p{nth}", (size // 4,), "float32", size) for nth, size in enumerate(sizes_bytes)]


class FakeRecorder:
    """Notes launches and ends."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, int, str]] = []
        self.ends: list[Any] = []

    def launched(self, segment: Any, size_bytes: int, dtype: str) -> int:
        self.launches.append((segment.index, size_bytes, dtype))
        return len(self.launches) - 1

    def finished(self, token: Any, end_s: float) -> None:
        self.ends.append(token)
