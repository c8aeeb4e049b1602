"""Two words that every rank adds to the last message of an iteration, behind the used flags.

    taking part    +1 in an even step, -1 in an odd one; 0 from a rank that shadows (join). Ranks in the same step add up to
                   their number; where one threw a window away (zero_grad without step) while others stepped, they do not
    change         1 from a rank whose split strategy was changed by a call

Summed over ranks they tell all ranks the same, without a collective of their own. On a GPU they are read one iteration later,
when they have long arrived, so that the host never waits for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gradweave.errors import MismatchError

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine

COUNT = 2
TAKING_PART, CHANGE = -2, -1


def mine(engine: Engine) -> list[float]:
    """What this rank adds."""
    taking_part = 0.0 if engine.shadow else (1.0, -1.0)[engine.step % 2]
    return [taking_part, 1.0 if engine.plan.pending else 0.0]


def read(engine: Engine) -> tuple[bool, bool]:
    """Whether ranks are in different steps, and whether a change of plan is pending somewhere; equal on all ranks."""
    assert engine.layout is not None and engine.layout.tail is not None
    words = engine.layout.tail[-COUNT:]
    if words.device.type != "cpu":
        words, engine.late_words = engine.late_words, _Late(words)
        words = None if words is None else words.get()
    if words is None:
        return False, False
    taking_part, change = words.tolist()
    parted = not engine.options.finish_in_backward and abs(taking_part) < engine.group.size - 0.5
    return parted, change > 0


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
