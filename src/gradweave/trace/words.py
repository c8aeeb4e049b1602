"""Figures in words: the same rounding wherever a person reads them."""

from __future__ import annotations

from collections.abc import Sequence


def ms(seconds: float) -> str:
    """Milliseconds with three or four significant digits.

    Example:
        >>> ms(0.0123456), ms(1.5), ms(0.00012)
        ('12.35 ms', '1500.0 ms', '0.12 ms')
    """
    value = seconds * 1e3
    return f"{value:.1f} ms" if value >= 100 else f"{value:.2f} ms"


def pct(value: float) -> str:
    """A percentage.

    Example:
        >>> pct(96.54), pct(3.46)
        ('97 %', '3.5 %')
    """
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"


def size(size_bytes: float) -> str:
    """Bytes with a binary unit.

    Example:
        >>> size(512), size(26214400)
        ('512 B', '25.0 MiB')
    """
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.2f} GiB"


def plan_text(plan: Sequence[int]) -> str:
    """Segments of a plan as index pairs.

    Example:
        >>> plan_text([107, 159])
        '[0, 107] [108, 159]'
    """
    firsts = [0, *(last + 1 for last in plan[:-1])]
    return " ".join(f"[{first}, {last}]" for first, last in zip(firsts, plan, strict=False))
