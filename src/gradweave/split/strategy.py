"""SplitStrategy: which gradients travel together, before the model is known.

A strategy is a value: it is checked when it is made, compares by content, hashes, pickles and survives JSON. `boundaries`
applies it to the gradients of a model, in the order in which backward generates them.

    form  (negative, not ascending, not a number, sum not 100, ...)  is refused when the strategy is made
    count (last index too small or too large, other names)           is refused by `boundaries`

Cost: `boundaries` is one pass over the gradients. Source of by index, by size and of 96.54 / 3.46: Huawei, "Adjusting
Gradient Splitting Strategy".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradweave.errors import SplitError
from gradweave.split import checks, rules
from gradweave.split.describe import describe

HCCL_SHARES_PCT = (96.54, 3.46)


@dataclass(frozen=True, slots=True)
class SplitStrategy:
    """How to split gradients into segments. Make one with a constructor below.

    Attributes:
        kind: the constructor's name: "by_idx", "by_size", "by_bytes", "by_names", "default", "single" or "per_gradient".
        values: what it was given, as a tuple: last indices; percent; bytes; tuples of names; nothing.

    Raises:
        SplitError: the value is malformed; the message has the value, the rule and the fix.

    Example:
        >>> SplitStrategy.by_size([60, 20, 20]).boundaries([10, 20, 30, 10, 10, 20])
        (2, 4, 5)
        >>> SplitStrategy.by_idx([20, 100, 159]) == SplitStrategy.by_idx((20, 100, 159))
        True
    """

    kind: str
    values: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        check = _CHECKS.get(self.kind)
        if check is None:
            raise SplitError(
                f"{checks.show(self.kind)} is not a kind of split strategy",
                rule=f"the kinds are {', '.join(_CHECKS)}",
                fix="use a constructor, for example SplitStrategy.by_size([60, 20, 20])",
            )
        object.__setattr__(self, "values", check(self.values))

    @classmethod
    def _checked(cls, kind: str, values: Any) -> SplitStrategy:
        """Make a strategy from what the user wrote, of whatever type: `__post_init__` checks it and makes the tuple."""
        return cls(kind, values)

    @classmethod
    def by_idx(cls, last_indices: Sequence[int]) -> SplitStrategy:
        """Split by gradient index.

        Args:
            last_indices: the last gradient index of each segment, ascending; the last one is the model's largest index n-1.

        Raises:
            SplitError: not a list, empty, not integers, negative or not ascending.

        Example:
            >>> SplitStrategy.by_idx([1, 3]).boundaries([4, 4, 4, 4])
            (1, 3)
        """
        return cls._checked("by_idx", last_indices)

    @classmethod
    def by_size(cls, shares_pct: Sequence[float]) -> SplitStrategy:
        """Split by percent of the bytes.

        Args:
            shares_pct: percent of each segment, above 0, summing to 100 within 0.0001.

        Raises:
            SplitError: not a list, empty, not numbers, not finite, not above 0 or not summing to 100.

        Example:
            >>> SplitStrategy.by_size([75, 25]).boundaries([4, 4, 4, 4])
            (2, 3)
        """
        return cls._checked("by_size", shares_pct)

    @classmethod
    def by_bytes(cls, cap_bytes: int | Sequence[int]) -> SplitStrategy:
        """Close segment k when its bytes reach the k-th cap; the last cap repeats, and no gradient is cut.

        Args:
            cap_bytes: bytes above 0, or a list of them.

        Raises:
            SplitError: empty, not integers, or not above 0.

        Example:
            >>> SplitStrategy.by_bytes(8).boundaries([4, 4, 4, 4])
            (1, 3)
        """
        return cls._checked("by_bytes", cap_bytes)

    @classmethod
    def caps_mib(cls, cap_mib: float | Sequence[float]) -> SplitStrategy:
        """Like `by_bytes`, in MiB, fractions and 0 allowed: the meaning of DistributedDataParallel's `bucket_cap_mb`.

        Args:
            cap_mib: MiB of at least 0, or a list of them (0 closes a segment after every gradient).

        Raises:
            SplitError: empty, not numbers, not finite, or negative.

        Example:
            >>> SplitStrategy.caps_mib([0.5, 25]).values
            (524288, 26214400)
        """
        return cls("by_bytes", checks.check_caps_mib(cap_mib))

    @classmethod
    def by_names(cls, segments: Sequence[Sequence[str]]) -> SplitStrategy:
        """Split by parameter names, as a plan file holds them: exact from the first step.

        Args:
            segments: names of each segment, in the order of generation.

        Raises:
            SplitError: not lists of names, an empty segment, or a name that appears twice.

        Example:
            >>> SplitStrategy.by_names([["c"], ["b", "a"]]).boundaries([4, 4, 4], ["c", "b", "a"])
            (0, 2)
        """
        return cls._checked("by_names", segments)

    @classmethod
    def default(cls) -> SplitStrategy:
        """Return the native default: 25 MiB in ready order, with a last segment of at most 1 MiB where boundaries allow."""
        return cls("default")

    @classmethod
    def hccl_default(cls) -> SplitStrategy:
        """Return HCCL's default: 96.54 % and 3.46 % of the bytes (one segment where there is one gradient)."""
        return cls("by_size", HCCL_SHARES_PCT)

    @classmethod
    def single(cls) -> SplitStrategy:
        """Send all gradients as one segment, when the last one is ready."""
        return cls("single")

    @classmethod
    def per_gradient(cls) -> SplitStrategy:
        """Send every gradient as a segment of its own."""
        return cls("per_gradient")

    def boundaries(self, sizes_bytes: Sequence[int], names: Sequence[str] | None = None) -> tuple[int, ...]:
        """Return the last index of each segment for gradients of the given sizes.

        Args:
            sizes_bytes: bytes of each of the n gradients, in the order of generation; 0 is allowed.
            names: their n names, needed by `by_names` only.

        Returns:
            Ascending last indices, the last one n-1; empty for a model without gradients.

        Raises:
            SplitError: the strategy does not fit the number or the names of the gradients.

        Example:
            >>> SplitStrategy.hccl_default().boundaries([500, 400, 60, 30])
            (2, 3)
        """
        return rules.boundaries(self.kind, self.values, [int(size) for size in sizes_bytes], names)

    @property
    def asked_segments(self) -> int | None:
        """Number of segments asked for, or None where the strategy leaves it open."""
        if self.kind == "single":
            return 1
        return len(self.values) if self.kind in ("by_idx", "by_size", "by_names") else None

    @property
    def order(self) -> tuple[str, ...] | None:
        """Names in the order of generation that a split by names implies; None for every other kind."""
        return tuple(name for segment in self.values for name in segment) if self.kind == "by_names" else None

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits, equal on every rank exactly when the strategies are equal.

        Example:
            >>> SplitStrategy.single().digest == SplitStrategy.default().digest
            False
        """
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self) -> str:
        """Say in one line what the strategy asks for.

        Example:
            >>> SplitStrategy.by_size([60, 20, 20]).describe()
            'by size: 60 %, 20 %, 20 %'
        """
        return describe(self.kind, self.values)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary that `json` can write and `from_dict` reads.

        Example:
            >>> SplitStrategy.by_idx([1, 3]).to_dict()
            {'kind': 'by_idx', 'values': [1, 3]}
        """
        return {"kind": self.kind, "values": [list(v) if isinstance(v, tuple) else v for v in self.values]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SplitStrategy:
        """Read what `to_dict` wrote.

        Raises:
            SplitError: not such a dictionary, or its values are malformed.

        Example:
            >>> SplitStrategy.from_dict({"kind": "single", "values": []}) == SplitStrategy.single()
            True
        """
        if not isinstance(data, Mapping) or set(data) != {"kind", "values"} or not isinstance(data["kind"], str):
            raise SplitError(
                f"{checks.show(data)} is not a split strategy",
                rule="a dictionary with the keys 'kind' (a string) and 'values' (a list)",
                fix="write it with SplitStrategy.to_dict()",
            )
        return cls(data["kind"], data["values"])


def _check_nothing(values: object) -> tuple[()]:
    if not isinstance(values, (list, tuple)) or values:
        raise SplitError(
            f"values {checks.show(values)} were given to a strategy that takes none",
            rule="'default', 'single' and 'per_gradient' have no values",
            fix="leave them out",
        )
    return ()


_CHECKS: dict[str, Callable[[object], tuple[Any, ...]]] = {
    "by_idx": checks.check_indices,
    "by_size": checks.check_percentages,
    "by_bytes": checks.check_caps,
    "by_names": checks.check_names,
    "default": _check_nothing,
    "single": _check_nothing,
    "per_gradient": _check_nothing,
}
