"""The segment result: what a strategy came to on a model, as a value and as a log line.

The line keeps the words that HCCL's users search their logs for:

    segment result: group world: segment index list: [0, 107] [108, 159] (2 segments, 96.54 % 3.46 % of 102228128 bytes)

Source: Huawei, "set_split_strategy_by_idx" (the keyword "segment result" and the form of the list).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from gradweave.errors import GroupError
from gradweave.model import Segment
from gradweave.split.strategy import SplitStrategy
from gradweave.world import names

logger = logging.getLogger("gradweave.split")


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The strategy of a group and, once a wrapper has applied it, its segments.

    Attributes:
        group: the group's name.
        strategy: the strategy set for the group; where none is set, the one that the latest wrapper applied, or the default.
        is_set: whether a call has set the strategy (False: the default applies).
        segments: the latest segment result, or None before a wrapper has applied the strategy.
        by_wrapper: the segments of every wrapper on the group, by its label.

    Example:
        >>> SplitResult("world", SplitStrategy.by_idx([0, 2]), True, (Segment(0, 0, 0, 4), Segment(1, 1, 2, 16)))
        <SplitResult of group 'world': by index: last indices 0, 2; segment index list: [0, 0] [1, 2]>
    """

    group: str
    strategy: SplitStrategy
    is_set: bool
    segments: tuple[Segment, ...] | None = None
    by_wrapper: Mapping[str, tuple[Segment, ...]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def last_indices(self) -> tuple[int, ...] | None:
        """The segments as `set_split_strategy_by_idx` takes them, or None before a wrapper has applied the strategy."""
        return None if self.segments is None else tuple(segment.last for segment in self.segments)

    def __repr__(self) -> str:
        result = "not applied yet" if self.segments is None else index_list(self.segments)
        return f"<SplitResult of group {self.group!r}: {self.strategy.describe()}; {result}>"


def index_list(segments: Sequence[Segment]) -> str:
    """Write segments in HCCL's form.

    Example:
        >>> index_list([Segment(0, 0, 107, 900), Segment(1, 108, 159, 100)])
        'segment index list: [0, 107] [108, 159]'
    """
    return " ".join(["segment index list:", *(f"[{segment.first}, {segment.last}]" for segment in segments)])


def result_line(group: str, segments: Sequence[Segment], strategy: SplitStrategy | None = None) -> str:
    """Write the segment result of a group as one line, with a note when fewer segments resulted than were asked for.

    Example:
        >>> result_line("world", [Segment(0, 0, 0, 75), Segment(1, 1, 1, 25)], SplitStrategy.by_size([50, 25, 25]))
        ... # doctest: +ELLIPSIS
        'segment result: group world: segment index list: [0, 0] [1, 1] (2 segments, 75.00 % 25.00 % of 100 bytes); 2 of 3 ...'
    """
    total_bytes = sum(segment.size_bytes for segment in segments)
    shares = " ".join(f"{100 * segment.size_bytes / max(1, total_bytes):.2f} %" for segment in segments)
    noun = "segment" if len(segments) == 1 else "segments"
    line = f"segment result: group {group}: {index_list(segments)} ({len(segments)} {noun}, {shares} of {total_bytes} bytes)"
    asked = strategy.asked_segments if strategy else None
    if asked is not None and len(segments) < asked:
        gradients = sum(map(len, segments))
        line += f"; {len(segments)} of {asked} segments asked for, because there are {gradients} gradients"
    return line


def log_result(group: str, segments: Sequence[Segment], strategy: SplitStrategy | None = None) -> None:
    """Log the segment result at level INFO of the logger `gradweave.split`, on the first rank of the group only."""
    if _logs_here(group):
        logger.info("%s", result_line(group, segments, strategy))


def _logs_here(group: str) -> bool:
    """Whether this rank is the group's first. A group that the table does not know is logged by all of its members."""
    try:
        ranks = names.lookup(group).ranks
    except GroupError:
        return True
    return names.my_rank() == min(ranks, default=0)
