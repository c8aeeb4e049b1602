"""The engine: from the hooks of autograd to reduced gradients.

    window = the backward passes between two steps
    first window       nothing is sent; the order, the number of backwards and of firings are observed
    its end            ranks agree on what they saw (rank 0's order counts); flat buffers are laid out; everything is sent
    later windows      a gradient is divided while it is copied into its slot; a complete segment is sent in order, from the
    hook end of a window    what never came is sent as zeros, results are awaited in order, parameters unused everywhere are
    restored

Cost: two Python calls per gradient (about 5 us), one collective per segment and dtype, none besides.
"""

from __future__ import annotations

import atexit
import enum
import os
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from gradweave.errors import CollectiveError, StateError
from gradweave.model import Segment
from gradweave.reduce import Cast, Dense, Reducer
from gradweave.split.strategy import SplitStrategy
from gradweave.sync import completion, notices, settle
from gradweave.sync.backward import BackwardTracker, in_backward
from gradweave.sync.device import clock_for, lane_for
from gradweave.sync.flight import Launcher
from gradweave.sync.hooks import Hooks
from gradweave.sync.layout import Layout
from gradweave.sync.options import EngineOptions
from gradweave.sync.plan import PlanSource
from gradweave.sync.table import ParameterTable
from gradweave.sync.watch import Watch
from gradweave.trace.live import save_on_exit
from gradweave.trace.recorder import Recorder
from gradweave.world import communicators
from gradweave.world.agree import agree
from gradweave.world.groups import Group, private_group

_live: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
def _release_all() -> None:
    for engine in list(_live):
        if not engine.closed:
            engine.close()


class State(enum.Enum):
    """Where a window is."""

    IDLE = "no backward since the last step"
    OPEN = "gradients are being generated"
    REDUCED = "gradients are reduced, no backward since"


class Engine:
    """Reduces the gradients of one set of parameters over one group.

    Args:
        named: names and parameters, equal on all ranks.
        group: the ranks.
        strategy: the plan; None takes the registry's, then `default`.
        default: the strategy when nobody names one.
        options: everything else.
        reducer: how a message is reduced; None is dense, with float32 for half precision gradients.

    Raises:
        MismatchError: ranks built different models, strategies or options.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        group: Group,
        strategy: SplitStrategy | None = None,
        default: SplitStrategy | None = None,
        options: EngineOptions | None = None,
        reducer: Reducer | None = None,
    ) -> None:
        self.options = options or EngineOptions()
        self.table = ParameterTable(named)
        self.group, self.rank = group, group.rank
        infos = [slot.info for slot in self.table.slots]
        self.plan = PlanSource(group.name, self.options.label, strategy, default or SplitStrategy.default(), infos)
        agree(self._terms(), f"{self.options.label} ({len(infos)} gradients)", group)
        self.pg = private_group(group, self.options.label, self.options.timeout_s)
        self.control = communicators.control(self.pg)
        limit = communicators.timeout_of(self.pg)
        self.watch = Watch(group, self.options.label, self.table.digest(), limit.total_seconds() if limit else 1800.0)
        self.reducer = reducer or self._default_reducer()
        self.recorder = self._make_recorder(infos)
        self.lane = lane_for(self.table.devices, group.backend)
        self.layout: Layout | None = None
        self.launcher: Launcher | None = None
        self.state, self.step, self.micro, self.unsynced = State.IDLE, 0, 0, 0
        self.backwards = self.options.accumulate
        self.sync_enabled = True
        self.broken: Exception | None = None
        self.live_size: int | None = None
        self.incomplete: list[str] = []
        self.shadow = self.closed = False
        self.late_words: Any = None
        self.sent_plan: tuple[int, ...] = ()
        self.launching = self.dividing = self.divides_now = self._syncing = False
        self.divide_by: float = 1
        self.weight_sum, self.weight_now = 0.0, 1.0
        self.total_weight: float | None = None
        self.sequence = 0
        self.tracker = BackwardTracker(self._backward_started, self._backward_ended)
        self.hooks = Hooks(self)
        self.hooks.attach(self.table.slots)
        self._end_communicator = weakref.finalize(self, communicators.destroy, self.pg)
        self._end_communicator.atexit = False
        _live.add(self)
        self.recorder.begin(0)

    def _terms(self) -> list[str]:
        """What all ranks must have in common."""
        o = self.options
        terms = f"op={o.op} overlap={o.overlap} accumulate={o.accumulate} reduce_dtype={o.reduce_dtype}"
        terms += f" weighted={o.weight is not None}"
        return [*self.table.fingerprint(), terms, f"strategy {self.plan.strategy.describe()} {self.plan.strategy.digest}"]

    def _default_reducer(self) -> Reducer:
        half = {torch.float16, torch.bfloat16, torch.complex32}
        if self.options.reduce_dtype is None and not any(slot.dtype in half for slot in self.table.slots):
            return Dense()
        return Cast(Dense(), self.options.reduce_dtype)

    def _make_recorder(self, infos: Any) -> Recorder:
        recorder = Recorder(
            rank=self.group.ranks[self.rank],
            world_size=self.group.size,
            group=self.group.name,
            backend=self.group.backend,
            label=self.options.label,
            enabled=self.options.record,
            meta=self.options.meta(),
            clock=clock_for(self.table.devices),
        )
        recorder.set_gradients(infos)
        if directory := os.environ.get("GRADWEAVE_TRACE_DIR"):
            save_on_exit(directory)
        return recorder

    # -- what the wrappers call ---------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in force; before the first step, those that reverse registration order would give."""
        if self.layout is not None:
            return self.layout.segments
        return settle.provisional_segments(self)

    @property
    def divisor(self) -> float:
        """What the sum over ranks and micro-batches of this window is divided by."""
        if self.total_weight is not None:
            return self.total_weight
        ranks = (self.live_size or self.group.size) if self.options.op == "average" else 1
        return ranks * (max(1, self.micro_count) if self.options.accumulate > 1 else 1)

    @property
    def whole_part(self) -> float:
        """What the words of all ranks sum up to: their number, divided where the reducer divides whole messages."""
        divides = self.reducer.carries_tail and not self.reducer.predivided
        return self.group.size / self.divisor if divides else self.group.size

    @property
    def micro_count(self) -> int:
        """Backward passes of this window, the running one included."""
        return self.micro + (1 if self.tracker.running and self._syncing else 0)

    def forward_started(self) -> None:
        """The model's forward begins (a forward hook calls this)."""
        self.recorder.fp_start()

    def forward_ended(self, outputs: Iterable[Tensor]) -> None:
        """The model's forward is over: watch its outputs, whose gradients mark the begin of the outermost backward."""
        self.recorder.fp_end()
        if not torch.is_grad_enabled():
            return
        ref = weakref.ref(self)

        def seen(_: Tensor) -> None:
            engine = ref()
            if engine is not None:
                engine.tracker.announce()

        for output in outputs:
            if output.requires_grad:
                output.register_hook(seen)

    def finish(self) -> None:
        """Reduce what has been generated since the last step and wait for it. Idempotent until the next backward."""
        self._usable()
        if self.state is State.REDUCED:
            return
        if in_backward() and not self.options.finish_in_backward:
            raise StateError(
                f"{self.options.label}: synchronize() was called inside backward",
                rule="gradients are complete when backward ends",
                fix="call it after loss.backward()",
                rank=self.group.ranks[self.rank],
                step=self.step,
            )
        self._close_backward()
        if self.state is State.IDLE:
            self._open()
        try:
            self._reduce(keep=True)
        except (CollectiveError, StateError) as error:
            self.broken = error
            raise

    def step_done(self) -> None:
        """The optimizer has stepped: the iteration ends, the next one begins."""
        self.state = State.IDLE
        self.recorder.iteration_end(self.sent_plan, self.options.overlap)
        self.step += 1
        self.watch.step = self.step
        self.recorder.begin(self.step)

    def drop(self) -> None:
        """The user throws the gradients away (zero_grad): end the window; reductions under way are awaited and forgotten."""
        self._usable()
        if self.state is not State.OPEN or in_backward():
            return
        self.tracker.abandon()
        if self._sent:
            self._reduce(keep=False)
        self.state = State.IDLE

    @property
    def reduced(self) -> bool:
        """Whether this window's gradients are reduced and no backward has come since."""
        return self.state is State.REDUCED

    def set_reducer(self, reducer: Reducer) -> None:
        """Reduce in another way from the next window on, on all ranks alike."""
        self.drop()
        self.reducer = reducer
        if self.layout is not None:
            self.layout = Layout(self.layout.order, self.pg, self.group.size, reducer)
            settle.lay_out(self)

    @property
    def in_flight(self) -> bool:
        """Whether complete gradients wait for their reduction (outside of backward)."""
        return self.state is State.OPEN and not in_backward() and self.micro >= self.backwards

    def close(self) -> None:
        """Take the hooks off and end the communicator; the parameters are plain again."""
        self.closed = True
        self.hooks.detach()
        self.release()

    def release(self) -> None:
        """Let go of the communicator: its threads end here, and not while the interpreter is torn down.

        They call back into Python when a reduction ends; one that wakes in a dying interpreter aborts the process.
        """
        self.layout = self.launcher = None
        self._end_communicator()
        del self.pg, self.control

    # -- windows -------------------------------------------------------------------------------------------------------------

    def _usable(self) -> None:
        if self.broken is not None:
            raise StateError(
                f"{self.options.label} cannot go on after: {self.broken}",
                rule="a failed reduction leaves ranks with different gradients",
                fix="restart the job from the last checkpoint",
            ) from self.broken

    @property
    def _sent(self) -> bool:
        """Whether this window may have been sent already, here or on another rank where more gradients were ready."""
        if self.layout is None or self.launcher is None or not self.options.overlap:
            return False
        return self.launcher.started or self.micro >= self.backwards

    def _open(self) -> None:
        self.state, self.micro, self.unsynced, self.sequence = State.OPEN, 0, 0, 0
        self.weight_sum, self.total_weight = 0.0, None
        for slot in self.table.slots:
            slot.reset()
        self.hooks.stay_last(self.table.slots)
        if self.layout is not None and self.launcher is not None:
            if self.layout.held_elsewhere():
                self.layout.fresh_memory()
            self.launcher.reset()

    def _backward_started(self) -> None:
        self._usable()
        if self.state is State.OPEN and (self._sent or 1 < self.options.accumulate <= self.micro):
            self._one_backward_more()
        if self.state is not State.OPEN:
            self._open()
        if self.launcher is not None:
            self.launcher.forget_versions()
        self._syncing = self.sync_enabled
        last = self._syncing and self.micro + 1 >= self.backwards and self.layout is not None
        self.dividing, self.launching = last, last and self.options.overlap
        for slot in self.table.slots:
            slot.fires = 0
        if self.options.weight is not None:
            settle.take_weight(self, agree_now=last)
        self.divide_by = self.divisor
        self.divides_now = last and self.reducer.predivided and self.divide_by != 1

    def _one_backward_more(self) -> None:
        """A window that was complete goes on: reduce it, and let the new gradients add to the result."""
        wanted = any(slot.used and slot.param.grad is not None for slot in self.table.slots)
        if wanted and self.options.accumulate > 1:
            raise StateError(
                f"{self.options.label}: backward() was called {self.micro + 1} times with accumulate={self.options.accumulate}",
                rule="step() or zero_grad() follows after at most so many backward passes",
                fix=f"pass accumulate={self.micro + 1}, or call optimizer.step() in time",
                rank=self.group.ranks[self.rank],
                step=self.step,
            )
        if self._sent:
            self._reduce(keep=wanted)
        self.state = State.REDUCED

    def _backward_ended(self) -> None:
        self.recorder.bp_end()
        if self._syncing:
            self.micro += 1
        else:
            self.unsynced += 1
        self.dividing = self.launching = False
        completion.note_versions(self)
        if self.options.finish_in_backward and self._syncing:
            self.finish()

    def _close_backward(self) -> None:
        """Account for a backward whose end was not seen: nested hooks only, or an exception inside."""
        if not self.tracker.running:
            return
        if self.tracker.blind and self.options.accumulate > 1:
            raise StateError(
                f"{self.options.label}: every gradient came from re-entrant checkpointing, so micro-batches cannot be counted",
                rule="accumulate= needs to see where a backward ends",
                fix="pass the model instead of named parameters, or use_reentrant=False",
            )
        self.tracker.abandon()
        if self._syncing:
            self.micro += 1
        self.dividing = self.launching = False

    def _reduce(self, keep: bool) -> None:
        """Send the rest, wait for all, put results in place.

        Args:
            keep: parameters that got no gradient here receive the others'.
        """
        if self.options.weight is not None and self.total_weight is None:
            settle.agree_weight(self)
        if self.layout is None:
            settle.settle(self)
        if keep:
            completion.check_untouched(self)
        assert self.layout is not None
        self.sent_plan = self.layout.boundaries
        completion.send_rest(self)
        completion.wait_and_restore(self, keep)
        self.state = State.REDUCED
        parted, change = notices.read(self)
        if parted:
            raise notices.parted(self)
        if change:
            settle.change_plan(self)
