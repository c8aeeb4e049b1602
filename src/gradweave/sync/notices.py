"""Three words that every rank adds to the last message of an iteration, behind the used flags.

    taking part    +1 in an even step, -1 in an odd one; 0 from a rank that shadows (join). Ranks in the same step add up to
                   their number; where one threw a window away (zero_grad without step) while others stepped, they do not
    change         1 from a rank whose split strategy was changed by a call
    re-plan        1 from a rank whose tuner saw that the network or the compute has changed

Summed over ranks they tell all ranks the same, without a collective of their own. On a GPU they are read one iteration later,
when they have long arrived, so that the host never waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gradweave.errors import MismatchError

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine

COUNT = 3
TAKING_PART, CHANGE, REPLAN = -3, -2, -1


class Told(NamedTuple):
    """What the words of all ranks say: ranks are in different steps; a change of plan is pending; a tuner asks to measure."""

    parted: bool = False
    change: bool = False
    replan: bool = False


def mine(engine: Engine) -> list[float]:
    """What this rank adds."""
    taking_part = 0.0 if engine.shadow else (1.0, -1.0)[engine.step % 2]
    replan = engine.tuner is not None and engine.tuner.wants_replan
    return [taking_part, 1.0 if engine.plan.pending else 0.0, 1.0 if replan else 0.0]


def read(engine: Engine) -> Told:
    """What all ranks were told; equal on all ranks."""
    assert engine.layout is not None and engine.layout.tail is not None
    words = engine.layout.tail[-COUNT:]
    if words.device.type != "cpu":
        words, engine.late_words = engine.late_words, _Late(words)
        words = None if words is None else words.get()
    if words is None:
        return Told()
    taking_part, change, replan = words.tolist()
    parted = not engine.options.finish_in_backward and abs(taking_part) < engine.group.size - 0.5
    return Told(parted, change > 0, replan > 0)


class _Late:
    """Words on their way to the host."""

    def __init__(self, words: torch.Tensor) -> None:
        self._host = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        self._host.copy_(words, non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record(torch.cuda.current_stream(words.device))

    def get(self) -> Any:
        self._arrived.synchronize()
        return self._host


def parted(engine: Engine) -> MismatchError:
    """The error for ranks that have made different numbers of steps: their weights have parted."""
    return MismatchError(
        f"{engine.options.label}: this rank is in step {engine.step}, others are not: a rank threw its gradients away "
        "(zero_grad without step) while others stepped",
        rule="all ranks of the group step, or none does",
        fix="restart from the last checkpoint; to skip a step after an error, let all ranks skip it: exchange a flag first",
        rank=engine.group.ranks[engine.rank],
        group=engine.group.name,
        step=engine.step,
    )
