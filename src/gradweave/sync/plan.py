"""Where an engine's plan comes from: its own strategy, or the registry of its group.

    explicit strategy  >  registry (set_split_strategy_*)  >  default of the wrapper

The registry counts versions; a version that differs from the one in force is a pending change, which the engine takes up
between two iterations once all ranks report it.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradweave.errors import MismatchError, SplitError
from gradweave.model import GradientInfo, Segment
from gradweave.split import registry
from gradweave.split.report import log_result
from gradweave.split.strategy import SplitStrategy


class PlanSource:
    """The strategy of one engine, and its resolution into boundaries.

    Args:
        group: name of the engine's group, the key of the registry.
        label: name of the wrapper in errors and reports.
        explicit: the wrapper's own strategy; wins over the registry.
        default: what holds when neither names one.
        infos: the gradients in registration order; their count is what the registry checks a new strategy against.
    """

    def __init__(
        self, group: str, label: str, explicit: SplitStrategy | None, default: SplitStrategy, infos: Sequence[GradientInfo]
    ) -> None:
        self.group, self.label, self.explicit, self.default = group, label, explicit, default
        self._infos = tuple(infos)
        self._offered = self.version, self.strategy = self._current()
        self.check_strategy(self.strategy)
        if explicit is None:
            registry.subscribe(group, self)
        else:
            registry.ignore(group, self)

    @property
    def gradient_count(self) -> int:
        """Number of gradients of the wrapper (the registry asks for it)."""
        return len(self._infos)

    def check_strategy(self, strategy: SplitStrategy) -> None:
        """Raise SplitError when the strategy does not fit this wrapper's gradients."""
        try:
            self.boundaries(strategy, self._ordered(strategy))
        except SplitError as error:
            error.group = error.group or self.group
            raise

    def force(self, strategy: SplitStrategy) -> None:
        """Take another strategy from now on, which all ranks have agreed upon; the registry has no say any more."""
        self.check_strategy(strategy)
        self.explicit = self.strategy = strategy

    def _ordered(self, strategy: SplitStrategy) -> tuple[GradientInfo, ...]:
        names = strategy.order
        if names is None:
            return self._infos
        by_name = {info.name: info for info in self._infos}
        return tuple(by_name[name] for name in names) if set(names) == set(by_name) else self._infos

    def close(self) -> None:
        """The wrapper is closed: the registry asks it no more."""
        registry.unsubscribe(self.group, self)

    def boundaries(self, strategy: SplitStrategy, infos: Sequence[GradientInfo]) -> tuple[int, ...]:
        """Last indices of the segments of `strategy` for gradients in this order."""
        return strategy.boundaries([info.size_bytes for info in infos], [info.name for info in infos])

    def _current(self) -> tuple[int, SplitStrategy]:
        if self.explicit is not None:
            return -1, self.explicit
        version, strategy = registry.snapshot(self.group)
        return version, strategy or self.default

    @property
    def pending(self) -> bool:
        """Whether a call to the registry has not been taken up yet."""
        return self.explicit is None and registry.version(self.group) != self.version

    def offer(self) -> dict[str, object]:
        """What this rank would switch to: told to the other ranks before any of them switches."""
        self._offered = version, strategy = self._current()
        return {"version": version, "strategy": strategy.to_dict(), "pending": self.pending}

    def accept(self, offers: Sequence[dict[str, object]], ranks: Sequence[int], step: int) -> None:
        """Take up the change that all ranks offer; MismatchError names the ranks that differ."""
        different = [rank for rank, offer in zip(ranks, offers, strict=True) if offer["strategy"] != offers[0]["strategy"]]
        if different:
            lagging = [rank for rank, offer in zip(ranks, offers, strict=True) if not offer["pending"]]
            who = f"ranks {lagging} made no call" if lagging else f"ranks {different} gave another value than rank {ranks[0]}"
            raise MismatchError(
                f"the split strategy of {self.label} was changed on some ranks only: {who}",
                rule="every rank of the group makes the same call between the same two iterations",
                fix="call set_split_strategy_* outside of any `if rank == ...`",
                rank=None,
                group=self.group,
                step=step,
            )
        self.version, self.strategy = self._offered  # not what the registry says by now: that was not compared

    def announce(self, segments: Sequence[Segment]) -> None:
        """Log and register the segment result."""
        registry.report(self.group, self.label, segments, self.strategy)
        log_result(self.group, segments, self.strategy)
