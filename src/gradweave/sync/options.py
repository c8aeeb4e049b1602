"""What a wrapper asks of its engine, checked at construction, and the states of the engine's windows."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch

from gradweave._version import __version__
from gradweave.errors import ConfigError
from gradweave.world.setup import as_timedelta

OPS = ("average", "sum")
REDUCTIONS = ("dense", "ordered")
REDUCE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class State(enum.Enum):
    """Where a window is."""

    IDLE = "no backward since the last step"
    OPEN = "gradients are being generated"
    REDUCED = "gradients are reduced, no backward since"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Options of one engine.

    Attributes:
        op: "average" divides the sum over ranks by the group size, "sum" does not; both average the micro-batches that
            `accumulate` counts.
        overlap: True starts a segment's reduction as soon as its gradients are ready; False after backward.
        accumulate: number of `backward()` calls per step, averaged. 1 means: observe it in the first step and do not average.
        reduce: "dense" is the backend's all-reduce; "ordered" sums in rank order, so that bits do not depend on the split.
        reduce_dtype: dtype of the reduction; None is float32 for half precision gradients and the gradient's own otherwise.
        finish_in_backward: finish every reduction before `backward()` returns (the behaviour of DDP).
        weight: function that gives the weight of this rank's current micro-batch (its number of tokens, for example); the
            result is then the weighted mean over ranks and micro-batches. Read once per backward.
        timeout_s: seconds after which a collective that did not finish is an error; None takes the group's.
        record: keep the events of the last iterations.
        label: name in traces, logs and errors.
        model_name: name of the model in reports; empty when only parameters are known.
    """

    op: str = "average"
    overlap: bool = True
    accumulate: int = 1
    reduce: str = "dense"
    reduce_dtype: torch.dtype | None = None
    finish_in_backward: bool = False
    weight: Callable[[], float] | None = None
    timeout_s: float | None = None
    record: bool = True
    label: str = "optimizer"
    model_name: str = ""

    def __post_init__(self) -> None:
        for name in ("overlap", "record"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r}", rule=f"{name} is True or False", fix="pass a bool")
        if not isinstance(self.label, str) or not self.label:
            raise ConfigError(f"label={self.label!r}", rule="a label is a text, not empty", fix="leave it out")
        if self.op not in OPS:
            raise ConfigError(f"op={self.op!r}", rule=f"op is one of {', '.join(map(repr, OPS))}", fix='pass op="average"')
        if isinstance(self.accumulate, bool) or not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ConfigError(
                f"accumulate={self.accumulate!r}",
                rule="accumulate is a whole number of micro-batches, at least 1",
                fix="pass 1 or more",
            )
        if self.reduce not in REDUCTIONS:
            raise ConfigError(
                f"reduce={self.reduce!r}",
                rule=f"reduce is one of {', '.join(map(repr, REDUCTIONS))}",
                fix='for example "dense"',
            )
        if self.reduce_dtype is not None and self.reduce_dtype not in REDUCE_DTYPES:
            raise ConfigError(
                f"reduce_dtype={self.reduce_dtype!r}",
                rule="gradients are summed in a real floating point dtype of 16 bits or more",
                fix="pass torch.float32, torch.bfloat16, torch.float16, torch.float64 or None",
            )
        if self.weight is not None and (not callable(self.weight) or self.op != "average"):
            raise ConfigError(
                f"weight={self.weight!r} with op={self.op!r}",
                rule='weight is a function without arguments, and a weighted mean needs op="average"',
                fix="pass weight=lambda: number_of_tokens",
            )
        if self.timeout_s is not None:
            check_timeout(self.timeout_s)

    def terms(self) -> str:
        """What all ranks must have in common."""
        return (
            f"op={self.op} overlap={self.overlap} accumulate={self.accumulate} reduce={self.reduce} "
            f"reduce_dtype={self.reduce_dtype} weighted={self.weight is not None}"
        )

    def meta(self) -> dict[str, str]:
        """What a report shows at its head."""
        named = {"model": self.model_name} if self.model_name else {}
        return {**named, "gradweave": __version__, "torch": str(torch.__version__)}


def check_timeout(value: float | timedelta | None) -> float | None:
    """Seconds of a timeout given as seconds, timedelta or None; ConfigError unless it is finite and positive."""
    return None if value is None else as_timedelta(value).total_seconds()
