"""Form of a split strategy: what can be refused at the call, before any model is known.

Each check takes what the user wrote and returns it as a tuple of plain Python values, or raises a `SplitError` that says the
value, the rule and the fix. Numpy arrays and numpy scalars count as lists and numbers; bool never counts as a number.

Rules:

    by_idx     non-negative integers, strictly ascending, at least one
    by_size    percent, each finite and > 0, sum 100 within 1e-4 (exact decimal arithmetic: 99.9999 is still allowed)
    by_bytes   positive integers, at least one
    by_names   non-empty lists of non-empty names, no name twice
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from numbers import Integral, Real

from gradweave.errors import SplitError

MIB = 1 << 20
SUM_TOLERANCE_PCT = Fraction(1, 10_000)

_IDX_RULE = "a list by index holds the last gradient index of each segment: non-negative integers in ascending order"
_IDX_FIX = "for 160 gradients in three segments write [20, 100, 159]"
_SIZE_RULE = "a list by size holds the percent of the bytes of each segment: finite numbers above 0 that sum to 100"
_SIZE_FIX = "for three segments write, for example, [60, 20, 20]"
_BYTES_RULE = "a cap in bytes is a positive integer, or a list of them, of which the last repeats"
_BYTES_FIX = "for segments of 25 MiB write 26214400, for a small first one [1048576, 26214400]"
_MIB_RULE = "a cap in MiB is a finite number of at least 0, or a list of them, of which the last repeats"
_MIB_FIX = "for segments of 25 MiB write 25, for a small first one [1, 25]"
_NAMES_RULE = "a split by names is a list of segments, each a non-empty list of parameter names, no name twice"
_NAMES_FIX = 'write [["head.bias", "head.weight"], ["body.weight"]]'

_short = reprlib.Repr()
_short.maxlist = _short.maxtuple = 12
_short.maxstring = _short.maxother = 80


def show(value: object) -> str:
    """Print a value for a message, a long list in part.

    Example:
        >>> show(list(range(100)))
        '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]'
    """
    return _short.repr(value)


def check_indices(value: object) -> tuple[int, ...]:
    """Check a list of last indices.

    Example:
        >>> check_indices(range(2, 9, 3))
        (2, 5, 8)
    """
    entries = [_integer(entry, value, _IDX_RULE, _IDX_FIX) for entry in _entries(value, _IDX_RULE, _IDX_FIX)]
    for entry in entries:
        if entry < 0:
            raise SplitError(f"index {entry} in {show(value)} is negative", rule=_IDX_RULE, fix=_IDX_FIX)
    for before, after in pairwise(entries):
        if before >= after:
            what = "appears twice" if before == after else f"comes after {before}"
            fix = f"write {show(sorted(set(entries)))}"
            raise SplitError(f"index {after} in {show(value)} {what}", rule=_IDX_RULE, fix=fix)
    return tuple(entries)


def check_percentages(value: object) -> tuple[float, ...]:
    """Check a list of percentages.

    Example:
        >>> check_percentages([96.54, 3.46])
        (96.54, 3.46)
    """
    shares = [_number(entry, value, _SIZE_RULE, _SIZE_FIX) for entry in _entries(value, _SIZE_RULE, _SIZE_FIX)]
    for share in shares:
        if share <= 0:
            raise SplitError(f"percentage {share:g} in {show(value)} is not above 0", rule=_SIZE_RULE, fix=_SIZE_FIX)
    total = sum(map(as_written, shares), Fraction(0))
    if abs(total - 100) > SUM_TOLERANCE_PCT:
        raise SplitError(
            f"the percentages {show(value)} sum to {float(total):.10g}",
            rule="percentages sum to 100 (within 0.0001)",
            fix=f"write {show(_rescaled(shares, total))}",
        )
    return tuple(shares)


def check_caps(value: object) -> tuple[int, ...]:
    """Check a cap in bytes, or a list of caps.

    Example:
        >>> check_caps(1024), check_caps([1024, 4096])
        ((1024,), (1024, 4096))
    """
    entries = [value] if isinstance(value, Real) else _entries(value, _BYTES_RULE, _BYTES_FIX)
    caps = [_integer(entry, value, _BYTES_RULE, _BYTES_FIX) for entry in entries]
    for cap in caps:
        if cap <= 0:
            raise SplitError(f"cap {cap} in {show(value)} is not above 0", rule=_BYTES_RULE, fix=_BYTES_FIX)
    return tuple(caps)


def check_caps_mib(value: object) -> tuple[int, ...]:
    """Check a cap in MiB, or a list of caps, and turn it into whole bytes, at least one.

    A cap of 0 closes a segment after every gradient, as it does in torch's DistributedDataParallel.

    Example:
        >>> check_caps_mib([0.5, 25])
        (524288, 26214400)
    """
    entries = [value] if isinstance(value, Real) else _entries(value, _MIB_RULE, _MIB_FIX)
    caps = [_number(entry, value, _MIB_RULE, _MIB_FIX) for entry in entries]
    for cap in caps:
        if cap < 0:
            raise SplitError(f"cap {cap:g} MiB in {show(value)} is negative", rule=_MIB_RULE, fix=_MIB_FIX)
    return tuple(max(1, int(cap * MIB)) for cap in caps)


def check_names(value: object) -> tuple[tuple[str, ...], ...]:
    """Check a list of lists of names.

    Example:
        >>> check_names([["c"], ["b", "a"]])
        (('c',), ('b', 'a'))
    """
    groups = []
    for group in _entries(value, _NAMES_RULE, _NAMES_FIX):
        if not isinstance(group, (list, tuple)) or not group:
            raise SplitError(f"segment {show(group)} is not a non-empty list of names", rule=_NAMES_RULE, fix=_NAMES_FIX)
        groups.append(tuple(group))
    seen: set[str] = set()
    for name in (name for group in groups for name in group):
        if not isinstance(name, str) or not name:
            raise SplitError(f"{show(name)} is not a parameter name", rule=_NAMES_RULE, fix=_NAMES_FIX)
        if name in seen:
            raise SplitError(f"parameter {name!r} appears twice", rule=_NAMES_RULE, fix=f"keep {name!r} in one segment")
        seen.add(name)
    return tuple(groups)


def as_written(number: float) -> Fraction:
    """Read a float as the decimal that the user wrote: 96.54 is 9654/100, so that ties and sums are exact.

    Example:
        >>> as_written(96.54)
        Fraction(4827, 50)
    """
    return Fraction(repr(number))


def _entries(value: object, rule: str, fix: str) -> Sequence[object]:
    if not isinstance(value, (list, tuple, range)):
        if type(value).__module__.partition(".")[0] != "numpy" or getattr(value, "ndim", 0) != 1:
            raise SplitError(f"{show(value)} is {_kind(value)}, not a list", rule=rule, fix=fix)
        assert isinstance(value, Iterable)
        value = list(value)
    if not value:
        raise SplitError(f"{show(value)} is empty", rule=rule, fix=fix)
    return value


def _integer(entry: object, value: object, rule: str, fix: str) -> int:
    if isinstance(entry, bool) or not isinstance(entry, Integral):
        raise SplitError(f"{show(entry)} in {show(value)} is {_kind(entry)}, not an integer", rule=rule, fix=fix)
    return int(entry)


def _number(entry: object, value: object, rule: str, fix: str) -> float:
    if isinstance(entry, bool) or not isinstance(entry, Real):
        raise SplitError(f"{show(entry)} in {show(value)} is {_kind(entry)}, not a number", rule=rule, fix=fix)
    try:
        number = float(entry)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SplitError(f"{show(entry)} in {show(value)} is not finite", rule=rule, fix=fix)
    return number


def _rescaled(shares: Sequence[float], total: Fraction) -> list[float]:
    """Propose percentages in the same proportions, the last one taking up the rounding."""
    scaled = [round(float(as_written(share) * 100 / total), 4) for share in shares]
    scaled[-1] = round(float(100 - sum(map(as_written, scaled[:-1]))), 4)
    return scaled


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
