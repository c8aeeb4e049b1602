"""`strategy="auto"`: what the live tuner is told.

The tuner itself is in `gradweave.sync.tuner`; this is the value that a user writes, without torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from gradweave.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Auto:
    """Measure, solve, try and keep: options of the live tuner. `strategy="auto"` is `Auto()`.

    Attributes:
        start: the strategy to begin with and to return to when nothing is better; None is the native default.
        plan_file: a plan is written here when one is found, and read from here at the next start when model, group size,
            backend and topology match; why it does not is said. None keeps nothing.
        max_segments, max_bytes: limits of a plan; None is no limit.
        min_gain: a plan is tried when the prediction saves this share of the step.
        watch: go on watching, and tune again when the network or the compute has changed.
        verbose: print one line per decision on stderr, on the group's first rank.
        stop: end the program (exit code 0, on all ranks together) when the plan is settled; for `gradweave tune`.

    Raises:
        ConfigError: a value is malformed.

    Example:
        >>> Auto(plan_file="plan.json").min_gain
        0.01
    """

    start: Any = None
    plan_file: str | os.PathLike[str] | None = None
    max_segments: int | None = None
    max_bytes: int | None = None
    min_gain: float = 0.01
    watch: bool = True
    verbose: bool = True
    stop: bool = False

    def __post_init__(self) -> None:
        for name in ("max_segments", "max_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ConfigError(
                    f"{name}={value!r}", rule=f"{name} is an integer of at least 1", fix="leave it out for no limit"
                )
        if isinstance(self.min_gain, bool) or not isinstance(self.min_gain, (int, float)) or not 0 <= self.min_gain < 1:
            raise ConfigError(
                f"min_gain={self.min_gain!r}", rule="min_gain is a share of the step from 0 to below 1", fix="for example 0.01"
            )
        if self.plan_file is not None and not isinstance(self.plan_file, (str, os.PathLike)):
            raise ConfigError(f"plan_file={self.plan_file!r}", rule="plan_file is a path", fix='for example "plan.json"')
        if self.start == "auto" or isinstance(self.start, Auto):
            raise ConfigError("start='auto'", rule="the tuner begins with a strategy", fix="leave start out for the default")
        for name in ("watch", "verbose", "stop"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r}", rule=f"{name} is True or False", fix="pass a bool")

    def terms(self) -> str:
        """What all ranks must have in common, as one line; not the plan file's path, of which the first rank's counts."""
        return (
            f"auto: start {self.start!r}, plan file {self.plan_file is not None}, at most {self.max_segments} segments of "
            f"{self.max_bytes} bytes, from a gain of {self.min_gain}, watch {self.watch}, stop {self.stop}"
        )


def auto_of(value: object) -> Auto | None:
    """The tuner's options when a user asked for it with `strategy=`; None for everything else.

    Example:
        >>> auto_of("auto") == Auto(), auto_of("single")
        (True, None)
    """
    if isinstance(value, Auto):
        return value
    return Auto() if isinstance(value, str) and value == "auto" else None
