"""Split strategies by group, a piece of module-level state that `reset_registries` resets.

A call sets the strategy of a group; wrappers built with `strategy=None` subscribe to their group, are asked whether a new
strategy fits before it is stored, and apply it between two iterations when they see a new version.

    set_     every live listener checks the strategy; if one refuses, nothing changes; else store, version + 1
    version  grows by one with every set_ and reset, also when the value is the same: ranks compare it to find a call
             that only some of them made
    report   a wrapper tells what segments resulted

Listeners are held by weak references, so that a wrapper that is gone has no say. Safe to call from several threads.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from gradweave.errors import SplitError
from gradweave.model import Segment
from gradweave.split.report import SplitResult
from gradweave.split.strategy import SplitStrategy
from gradweave.world import names


class Listener(Protocol):
    """A live wrapper that takes its strategy from the registry."""

    @property
    def label(self) -> str:
        """Name of the wrapper in messages."""

    @property
    def gradient_count(self) -> int:
        """Number n of its gradients."""

    def check_strategy(self, strategy: SplitStrategy) -> None:
        """Raise `SplitError` when the strategy does not fit the wrapper's gradients."""


@dataclass(slots=True)
class _Entry:
    strategy: SplitStrategy | None = None
    version: int = 0
    listeners: list[weakref.ref[Listener]] = field(default_factory=list)
    deaf: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    reports: dict[str, tuple[tuple[Segment, ...], SplitStrategy | None]] = field(default_factory=dict)

    def live(self) -> list[Listener]:
        """Return the listeners that still exist, and forget the others."""
        found = [(ref, ref()) for ref in self.listeners]
        self.listeners = [ref for ref, listener in found if listener is not None]
        return [listener for _, listener in found if listener is not None]


_entries: dict[str, _Entry] = {}
_lock = threading.RLock()


def set_(group: str, strategy: SplitStrategy) -> int:
    """Set the strategy of a group for all its wrappers with `strategy=None`, from their next iteration on.

    Returns:
        The group's new version.

    Raises:
        SplitError: a live wrapper refuses the strategy, or wrappers with different numbers of gradients share the group and
            the strategy is by index. Nothing is changed then.
    """
    with _lock:
        entry = _entry(group)
        listeners = entry.live()
        _check_one_count(strategy, listeners, group)
        for listener in listeners:
            listener.check_strategy(strategy)
        if entry.deaf and not listeners:
            warnings.warn(
                f"the split strategy of group {_key(group)!r} was set, but its wrappers "
                f"({', '.join(sorted(other.label for other in entry.deaf))}) were given strategy= of their own, which wins",
                stacklevel=3,
            )
        entry.strategy = strategy
        entry.version += 1
        return entry.version


def get(group: str) -> SplitStrategy | None:
    """Return the strategy that a call has set for the group, or None."""
    return snapshot(group)[1]


def version(group: str) -> int:
    """Return how many times the group's strategy has been set or reset."""
    return snapshot(group)[0]


def snapshot(group: str) -> tuple[int, SplitStrategy | None]:
    """Return version and strategy of a group, as they belong together."""
    with _lock:
        entry = _entry(group)
        return entry.version, entry.strategy


def reset(group: str) -> int:
    """Forget the strategy of a group: its wrappers return to their default at their next iteration.

    Returns:
        The group's new version.
    """
    with _lock:
        entry = _entry(group)
        entry.strategy = None
        entry.version += 1
        return entry.version


@names.on_reset
def reset_all() -> None:
    """Forget all strategies, listeners and reports. Versions go on growing, so that a wrapper from before notices."""
    with _lock:
        for group, entry in _entries.items():
            _entries[group] = _Entry(version=entry.version + 1)


def subscribe(group: str, listener: Listener) -> None:
    """Ask this wrapper too when the group's strategy is set. It is held by a weak reference.

    Raises:
        SplitError: the group's strategy is by index, and another wrapper on it has another number of gradients.
    """
    with _lock:
        entry = _entry(group)
        others = [other for other in entry.live() if other is not listener]
        if entry.strategy is not None:
            _check_one_count(entry.strategy, [*others, listener], group)
        if len(others) == len(entry.listeners):
            entry.listeners.append(weakref.ref(listener))


def ignore(group: str, wrapper: Any) -> None:
    """Note a wrapper (with a `label`) that has a strategy of its own: a call that no wrapper follows is warned about."""
    with _lock:
        _entry(group).deaf.add(wrapper)


def unsubscribe(group: str, listener: Listener) -> None:
    """Stop asking a wrapper; one that never subscribed is ignored."""
    with _lock:
        entry = _entry(group)
        entry.listeners = [ref for ref in entry.listeners if ref() is not listener]
        entry.deaf.discard(listener)


def report(group: str, label: str, segments: Sequence[Segment], strategy: SplitStrategy | None = None) -> None:
    """Record the segments that a wrapper works with from now on.

    Args:
        group: the group's name.
        label: the wrapper's name; a later report under the same name replaces this one.
        segments: the segment result.
        strategy: what the wrapper applied, where it is not the group's.
    """
    with _lock:
        reports = _entry(group).reports
        reports.pop(label, None)
        reports[label] = (tuple(segments), strategy)


def result(group: str, fallback: SplitStrategy | None = None) -> SplitResult:
    """Return the strategy and the latest segment result of a group.

    Args:
        group: the group's name.
        fallback: the strategy to show where neither a call nor a wrapper has named one (None: the native default).
    """
    with _lock:
        entry = _entry(group)
        by_wrapper = {label: segments for label, (segments, _) in entry.reports.items()}
        segments, applied = next(reversed(entry.reports.values()), (None, None))
        strategy = entry.strategy or applied or fallback or SplitStrategy.default()
        return SplitResult(_key(group), strategy, entry.strategy is not None, segments, MappingProxyType(by_wrapper))


def _key(group: str) -> str:
    return names.WORLD if group in names.WORLD_NAMES else group


def _entry(group: str) -> _Entry:
    return _entries.setdefault(_key(group), _Entry())


def _check_one_count(strategy: SplitStrategy, listeners: Sequence[Listener], group: str) -> None:
    """Refuse indices where they would mean different things to two wrappers."""
    if strategy.kind != "by_idx":
        return
    for other in listeners[1:]:
        first = listeners[0]
        if other.gradient_count != first.gradient_count:
            raise SplitError(
                f"wrappers {first.label!r} ({first.gradient_count} gradients) and {other.label!r} "
                f"({other.gradient_count} gradients) share the group, and the strategy is by index",
                rule="a split by index serves wrappers with equal numbers of gradients",
                fix="give each wrapper its own strategy=SplitStrategy.by_idx(...), or split the group by size or bytes",
                group=_key(group),
            )
