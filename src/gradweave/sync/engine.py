"""The engine: from the hooks of autograd to reduced gradients.

    window          the backward passes between two steps
    first window    nothing is sent; the order, the number of backwards and of firings are observed; at its end ranks agree on
                    what they saw (rank 0's order counts), flat buffers are laid out and everything is sent
    later windows   a gradient is divided while it is copied into its slot; a complete segment is sent in order, from a hook
    end of one      what never came is sent as zeros, results are awaited in order, parameters unused everywhere are restored

Cost: two Python calls per gradient (about 5 us) and one collective per segment and dtype. One more per step with `weight=` (the
sum of the weights) or with a communication hook (the flags). Cannot be combined with another engine on the same parameters.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradweave.errors import CollectiveError, MismatchError, StateError
from gradweave.model import Segment
from gradweave.reduce import Reducer
from gradweave.split import SplitStrategy, auto_of
from gradweave.sync import build, completion, notices, settle
from gradweave.sync.backward import BackwardTracker, in_backward
from gradweave.sync.device import lane_for
from gradweave.sync.flight import Launcher
from gradweave.sync.hooks import Hooks
from gradweave.sync.layout import Layout
from gradweave.sync.options import EngineOptions, State
from gradweave.sync.table import ParameterTable
from gradweave.sync.tuner import make_tuner
from gradweave.sync.watch import Watch
from gradweave.world import communicators, names
from gradweave.world.groups import Group, private_group

_LAST_MOMENT_S = 2.0
_live: weakref.WeakSet[Engine] = weakref.WeakSet()


@atexit.register
@names.on_reset
def _close_all() -> None:
    """The world is left, or the program ends; one engine that raises does not keep the others."""
    if names.is_forked_child():
        return
    with contextlib.ExitStack() as stack:
        for engine in list(_live):
            engine.world_left = engine.world_left or not engine.closed
            stack.callback(engine.close)


class Engine:
    """Reduces the gradients of one set of parameters over one group.

    Args:
        named: names and parameters, equal on all ranks.
        group: the ranks.
        strategy: the plan, as `gradweave.split.as_strategy` accepts it; None takes the registry's, then `default`.
        default: the strategy when nobody names one.
        options: everything else.
        reducer: how a message is reduced; None is dense, with float32 for half precision gradients.
        terms: what else the ranks must have in common.

    Raises:
        MismatchError: ranks built different models, strategies or options.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, torch.nn.Parameter]],
        *,
        group: Group,
        strategy: Any = None,
        default: SplitStrategy | None = None,
        options: EngineOptions | None = None,
        reducer: Reducer | None = None,
        terms: Sequence[str] = (),
    ) -> None:
        self.options = options or EngineOptions()
        self.table = ParameterTable(named)
        self.group, self.rank = group, group.rank
        fallback = default or SplitStrategy.default()
        auto = auto_of(strategy) if strategy is not None else build.auto_of_command(self.options.label)
        if auto is not None:
            strategy, terms = auto.start or fallback, [*terms, auto.terms()]
        self.plan = build.agreed_plan(strategy, fallback, self.table, self.options, group, terms)
        self.pg = private_group(group, self.options.label, self.options.timeout_s)
        self.control = communicators.control(self.pg)
        limit = communicators.timeout_of(self.pg)
        self.watch = Watch(group, self.options.label, self.pg.group_name, limit.total_seconds() if limit else 1800.0)
        self.reducer = reducer or build.default_reducer(self.table, self.options, group)
        self.recorder = build.recorder_for(self.table, self.options, group)
        self.lane = lane_for(self.table.devices, group.backend)
        self.layout: Layout | None = None
        self.launcher: Launcher | None = None
        self.state, self.step, self.micro = State.IDLE, 0, 0
        self._iteration_over = False
        self.backwards = self.options.accumulate
        self.sync_enabled = True
        self.broken: Exception | None = None
        self.live_size: int | None = None
        self.incomplete: list[str] = []
        self.shadow = self.closed = self.world_left = self.tuning_pauses = False
        self.late_words: Any = None
        self.sent_plan: tuple[int, ...] = ()
        self.launching = self.dividing = self.divides_now = self._syncing = False
        self.divide_by: float = 1
        self.weight_sum, self.weight_now, self.weight_unit = 0.0, 1.0, 1.0
        self.sets_aside = self.options.weight is not None or self.options.accumulate > 1 or self.options.op != "average"
        self.total_weight: float | None = None
        self.sequence = 0
        self.tracker = BackwardTracker(self._backward_started, self._backward_ended)
        self.hooks = Hooks(self)
        self.hooks.attach(self.table.slots)
        # Gloo's threads call back into Python and must end with the engine. Ending an NCCL communicator whenever the collector
        # runs, at other moments on other ranks, may block: close() does it.
        if "nccl" not in group.backend:
            weakref.finalize(self, communicators.destroy_named, self.pg.group_name).atexit = False
        _live.add(self)
        self.tuner = None if auto is None else make_tuner(self, auto)
        self.recorder.begin(0)

    # -- what the wrappers call ---------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in force; before the first step, those that reverse registration order would give."""
        self.check_open()
        if self.layout is not None:
            return self.layout.segments
        return settle.provisional_segments(self)

    @property
    def divisor(self) -> float:
        """What the sum over ranks and micro-batches of this window is divided by."""
        if self.total_weight is not None:
            return self.total_weight / self.weight_unit
        ranks = (self.live_size or self.group.size) if self.options.op == "average" else 1
        return ranks * (max(1, self.micro_count) if self.options.accumulate > 1 else 1)

    @property
    def micro_count(self) -> int:
        """Backward passes of this window, the running one included."""
        return self.micro + (1 if self.tracker.running and self._syncing else 0)

    def forward_started(self) -> None:
        """The model's forward begins (a forward hook calls this); one without gradients, of a validation, is no step's."""
        if not torch.is_grad_enabled():
            return
        if self.state is State.REDUCED and not self._iteration_over:
            self._end_iteration()  # the step was skipped (GradScaler): what follows is another iteration
        self.recorder.fp_start()

    def forward_ended(self, outputs: Iterable[Tensor]) -> None:
        """The model's forward is over: watch its outputs, whose gradients mark the begin of the outermost backward."""
        if not torch.is_grad_enabled():
            return
        self.recorder.fp_end()
        self.tracker.watch(outputs)

    def finish(self) -> None:
        """Reduce what has been generated since the last step and wait for it. Idempotent until the next backward."""
        self._usable()
        if self.state is State.REDUCED:
            return
        if in_backward() and not self.options.finish_in_backward:
            raise self.error(
                "synchronize() was called inside backward",
                rule="gradients are complete when backward ends",
                fix="call it after loss.backward()",
            )
        self._close_backward()
        if self.state is State.IDLE:
            self._open()
        self._reduce(keep=True)

    def step_done(self) -> None:
        """The optimizer has stepped: the iteration ends, the next one begins."""
        self.state = State.IDLE
        self.step += 1
        self.watch.step = self.step
        if not self._iteration_over:
            self._end_iteration()

    def _end_iteration(self) -> None:
        self.recorder.iteration_end(self.sent_plan, self.options.overlap)
        if self.tuner is not None and self.layout is not None and not self.tuning_pauses:
            self.tuner.after_iteration()
        self.recorder.begin(self.step)
        self._iteration_over = True

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

    @property
    def idle(self) -> bool:
        """Whether no backward has come since the last step."""
        return self.state is State.IDLE

    def mark_reduced(self) -> None:
        """The gradients that are there were reduced by an engine before this one: the next step does not do it again."""
        self.state = State.REDUCED

    def set_reducer(self, reducer: Reducer) -> None:
        """Reduce in another way from the next window on, on all ranks alike."""
        self.drop()
        self.reducer.close()
        self.reducer = reducer
        if self.layout is not None:
            self.layout = Layout(self.layout.order, self.pg, self.group.size, reducer)
            settle.lay_out(self)

    @property
    def in_flight(self) -> bool:
        """Whether complete gradients wait for their reduction (outside of backward)."""
        return self.state is State.OPEN and not in_backward() and self.micro >= self.backwards

    def save_plan(self, path: str | os.PathLike[str], note: str) -> None:
        """Write the plan in force to a plan file."""
        self.check_open()
        build.save_plan_in_force(self, path, note)

    def check_open(self) -> None:
        """Raise StateError when the wrapper was closed, or its world was left."""
        if self.closed:
            how = "the world was left (shutdown)" if self.world_left else "it was closed"
            raise self.error(
                f"{how}; gradients travel no more", "a wrapper works as long as its world", "call gw.init() and wrap again"
            )

    def close(self) -> None:
        """Take the hooks off and end the communicator; the parameters are plain again. A second call does nothing."""
        if self.closed:
            return
        self.closed = True
        self.plan.close()
        self.hooks.detach()
        # The communicator's threads call back into Python when a reduction ends; one that wakes in a dying interpreter aborts
        # the process: they end here.
        if self.launcher is not None:
            self.launcher.settle(_LAST_MOMENT_S)
        self.layout = self.launcher = None
        self.reducer.close()
        communicators.destroy(self.pg)
        del self.pg, self.control

    # -- windows -------------------------------------------------------------------------------------------------------------

    def error(self, what: str, rule: str, fix: str) -> StateError:
        """The error for a call or a gradient that this engine cannot take now, with its name, rank, group and step."""
        rank, group = self.group.ranks[self.rank], self.group
        return StateError(f"{self.options.label}: {what}", rule=rule, fix=fix, rank=rank, group=group.name, step=self.step)

    def _usable(self) -> None:
        if self.broken is not None:
            raise self.error(
                f"cannot go on after: {self.broken}",
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
        if self.state is State.REDUCED and not self._iteration_over:
            self._end_iteration()
        self._iteration_over = False
        self.state, self.micro, self.sequence = State.OPEN, 0, 0
        self.weight_sum, self.weight_unit, self.total_weight = 0.0, 1.0, None
        for slot in self.table.slots:
            slot.reset()
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
        self.hooks.stay_last(self.table.slots)
        self._syncing = self.sync_enabled
        last = self._syncing and self.micro + 1 >= self.backwards and self.layout is not None
        self.dividing, self.launching = last, last and self.options.overlap
        for slot in self.table.slots:
            slot.fires = 0
        if self.options.weight is not None:
            with self._or_broken():
                settle.take_weight(self, agree_now=last)
        self.divide_by = self.divisor
        self.divides_now = last and self.reducer.predivided and self.divide_by != 1

    def _one_backward_more(self) -> None:
        """A window that was complete goes on: reduce it, and let the new gradients add to the result."""
        wanted = any(slot.used and slot.param.grad is not None for slot in self.table.slots)
        if wanted and self.options.accumulate > 1:
            raise self.error(
                f"backward() was called {self.micro + 1} times with accumulate={self.options.accumulate}",
                rule="step() or zero_grad() follows after at most so many backward passes",
                fix=f"pass accumulate={self.micro + 1}, or call optimizer.step() in time",
            )
        if self._sent:
            self._reduce(keep=wanted)
        self.state = State.REDUCED

    def _backward_ended(self) -> None:
        self.recorder.bp_end()
        if self._syncing:
            self.micro += 1
        self.dividing = self.launching = False
        completion.note_versions(self)
        if self.options.finish_in_backward and self._syncing:
            self.finish()

    def _close_backward(self) -> None:
        """Account for a backward whose end was not seen: nested hooks only, or an exception inside."""
        if not self.tracker.running:
            return
        if self.tracker.blind and self.options.accumulate > 1:
            raise self.error(
                "every gradient came from re-entrant checkpointing, so micro-batches cannot be counted",
                rule="accumulate= needs to see where a backward ends",
                fix="pass the model instead of named parameters, or use_reentrant=False",
            )
        self.tracker.abandon()
        if self._syncing:
            self.micro += 1
        self.dividing = self.launching = False

    @contextlib.contextmanager
    def _or_broken(self) -> Iterator[None]:
        """An error on the way to reduced gradients leaves ranks with different ones: nothing goes on after it."""
        try:
            yield
        except (CollectiveError, MismatchError, StateError) as error:
            self.broken = error
            raise

    def _reduce(self, keep: bool) -> None:
        """Send the rest, wait for all, put results in place.

        Args:
            keep: parameters that got no gradient here receive the others'.
        """
        with self._or_broken():
            self._reduce_all(keep)

    def _reduce_all(self, keep: bool) -> None:
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
        told = notices.read(self)
        if told.parted:
            raise notices.parted(self)
        if told.replan and self.tuner is not None:
            self.tuner.asked = True
        if told.change:
            settle.change_plan(self)
