"""Gradients and segments.

Gradients are indexed 0..n-1 in the order in which backward generates them. A *plan* is the ascending list of the last indices
of its segments; a *segment* is a run of consecutive gradients that travel together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GradientInfo:
    """One gradient: its parameter's name, shape and dtype (torch's name without the `torch.` prefix).

    Example:
        >>> GradientInfo("head.weight", (10, 4), "float32", 160).numel
        40
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int

    @property
    def numel(self) -> int:
        """Number of elements (1 for a scalar, 0 for an empty tensor)."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count


@dataclass(frozen=True, slots=True)
class Segment:
    """Gradients `first..last` (both included), `size_bytes` in all.

    Example:
        >>> len(Segment(index=0, first=3, last=5, size_bytes=96))
        3
    """

    index: int
    first: int
    last: int
    size_bytes: int

    def __len__(self) -> int:
        return self.last - self.first + 1


def segments_from_boundaries(boundaries: Sequence[int], sizes_bytes: Sequence[int]) -> tuple[Segment, ...]:
    """Turn a plan (last indices) into segments.

    Args:
        boundaries: ascending last indices; the last one is `len(sizes_bytes) - 1`.
        sizes_bytes: bytes of each gradient, in index order.

    Example:
        >>> [s.size_bytes for s in segments_from_boundaries([0, 2], [4, 8, 8])]
        [4, 16]
    """
    segments, first = [], 0
    for index, last in enumerate(boundaries):
        segments.append(Segment(index, first, last, sum(sizes_bytes[first : last + 1])))
        first = last + 1
    return tuple(segments)
