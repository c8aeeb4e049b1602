"""Split strategies in words, one line each, for logs and reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_WITHOUT_VALUES = {
    "default": "default: 25 MiB in ready order, with a last segment of at most 1 MiB where boundaries allow",
    "single": "single: all gradients in one segment",
    "per_gradient": "per gradient: a segment for every gradient",
}


def describe(kind: str, values: Sequence[Any]) -> str:
    """Say in one line what a strategy of this kind and these values asks for.

    Example:
        >>> describe("by_idx", (20, 100, 159))
        'by index: last indices 20, 100, 159'
    """
    if kind == "by_size":
        return "by size: " + _shortened([f"{share:.10g} %" for share in values])
    if kind == "by_idx":
        return "by index: last indices " + _shortened([str(index) for index in values])
    if kind == "by_bytes":
        return "by bytes: caps " + _shortened([f"{cap} B" for cap in values]) + " (the last repeats)"
    if kind == "by_names":
        return f"by names: {len(values)} segments of {sum(map(len, values))} parameters"
    return _WITHOUT_VALUES[kind]


def _shortened(items: Sequence[str], most: int = 12) -> str:
    """Join items, a long list in part."""
    return ", ".join(items) if len(items) <= most else ", ".join((*items[: most - 1], "...", items[-1]))
