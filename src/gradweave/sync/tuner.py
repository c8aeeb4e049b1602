"""The live tuner: measure, solve, try, keep the better, watch.

    warm up          5 iterations
    profile         10: 3 as it is, 3 with one segment (compute undisturbed), 4 with segments of many sizes (cost of a message)
    decide           all ranks exchange what they recorded and solve the same instance; nothing to gain: keep
    try             turns of the present and the new plan, A B A B; the new one stays when it is faster beyond the spread
    watch            each rank compares transfers and compute with what they were; a word behind the used flags tells all ranks
                     that one of them saw a change, and all profile again, each time after twice as many iterations at least

Every decision is made by all ranks from the same exchanged figures, between two iterations, so that all switch together. A plan
switch cuts the same flat buffers anew: no memory, no copy. Source: "Tuning in a live run" of the design. Cost: the profile's
iterations with one segment are as slow as no overlap; one exchange of the records after each phase; no cost while watching but
a comparison of medians per iteration. Cannot be combined with record=False; pauses inside `join`.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

import torch

from gradweave.errors import ConfigError, GradweaveError, PlanFileError
from gradweave.model import Segment
from gradweave.model.events import Iteration
from gradweave.reduce import CommHook, Message
from gradweave.split import Auto, Plan, SplitStrategy, load_plan
from gradweave.sync import build, settle
from gradweave.tune.decide import Decision, decide
from gradweave.tune.paired import Verdict, compare
from gradweave.tune.profile import StepTimes, make_profile, step_times

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine

Figures = tuple[float, float]
WARM_UP, AS_IT_IS, ALONE, MANY_SIZES = 5, 3, 3, 4
_TURN, _TURNS, _TURNS_AGAIN = 3, 4, 2
_LADDER = SplitStrategy.by_size([1.5, 3.5, 7, 13, 25, 50])
_SWEEP_BYTES, _SWEEP_REPEATS = (4_096, 65_536, 524_288), 3
_RECENT, _CHANGED, _FIRST_PAUSE, _LONGEST_PAUSE = 5, 1.25, 20, 1_280


def make_tuner(engine: Engine, auto: Auto) -> LiveTuner:
    """The tuner of an engine; takes the plan of the plan file, if it serves this run.

    Raises:
        ConfigError: the engine does not record.
    """
    if not engine.options.record:
        raise ConfigError(
            'strategy="auto" with record=False', rule="the tuner decides from what is recorded", fix="leave record=True"
        )
    resumed = None
    if auto.plan_file is None:
        return LiveTuner(engine, auto, None)
    # The first rank's file counts: the others may have no such file, or an older one.
    plan, why_not = settle.gather(engine, _read(engine, auto.plan_file), "the tuner's plan file")[0]
    if plan is not None:
        engine.plan.force(plan.strategy())
        resumed = os.fspath(auto.plan_file)
    tuner = LiveTuner(engine, auto, resumed)
    if why_not:
        tuner.say(f"tunes from the start: {why_not}")
    return tuner


def _read(engine: Engine, path: str | os.PathLike[str]) -> tuple[Plan | None, str]:
    """The plan, or why it does not serve this run; neither where there is no file yet."""
    if engine.rank != 0 or not os.path.exists(path):
        return None, ""
    try:
        plan = load_plan(path)
        group = engine.group
        plan.check(
            [slot.info for slot in engine.table.slots],
            group_size=group.size,
            backend=group.backend,
            topology=build.topology_of(group),
        )
    except PlanFileError as error:
        return None, error.what
    return plan, ""


class LiveTuner:
    """Tunes one engine.

    Args:
        engine: whose plan is tuned.
        auto: what the user asked for.
        resumed: where the plan in force was read from; None when it has to be found.
    """

    def __init__(self, engine: Engine, auto: Auto, resumed: str | None) -> None:
        self._ref, self._auto, self._resumed = weakref.ref(engine), auto, resumed
        self.lines: list[str] = []
        self.settled = False
        self.decision: Decision | None = None
        self.wants_replan = False
        self.asked = False
        self._life = self._run()

    def after_iteration(self) -> None:
        """One iteration of all ranks has ended; take the next step of the procedure."""
        next(self._life, None)

    # -- the procedure, one `yield` per iteration -----------------------------------------------------------------------------

    def _run(self) -> Iterator[None]:
        if self._resumed is None:
            yield from self._wait(WARM_UP)
            yield from self._tune(_TURNS)
        else:
            self.say(f"resumes from {self._resumed}: {self._shape()}")
        self._settle()
        pause = _FIRST_PAUSE
        while self._auto.watch:
            yield from self._watch(pause)
            self.asked = self.wants_replan = False
            self.say(f"the network or the compute has changed by step {self._engine.step}: measures again")
            yield from self._tune(_TURNS_AGAIN)
            self._settle()
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _wait(self, iterations: int) -> Iterator[None]:
        for _ in range(iterations):
            yield

    def _tune(self, turns: int) -> Iterator[None]:
        present = self._boundaries
        sizes = [info.size_bytes for info in self._layout.infos]
        begun = self._engine.step
        for plan, iterations in (
            (present, AS_IT_IS),
            ((len(sizes) - 1,), ALONE),
            (_LADDER.boundaries(sizes), MANY_SIZES),
        ):
            self._use(plan)
            yield from self._wait(iterations)
        self._use(present)
        with self._engine.watch.naming("the tuner's small messages"):
            sweep = self._sweep(sum(sizes))
        steps, sweep = self._exchange(begun, sweep)
        profile = make_profile(steps, sizes, sweep)
        if profile is None or not profile.samples:
            self.say("keeps its plan: no collective was recorded")
            return
        decision = decide(profile, present, max_bytes=self._auto.max_bytes, max_segments=self._auto.max_segments)
        self.decision = decision
        self._explain(decision, profile.slowdown)
        if decision.plan != present and decision.gain >= self._auto.min_gain:
            yield from self._try(present, decision, turns)

    def _try(self, present: tuple[int, ...], decision: Decision, turns: int) -> Iterator[None]:
        begun = self._engine.step
        for _ in range(turns):
            for plan in (present, decision.plan):
                self._use(plan)
                yield from self._wait(_TURN)
        steps, _ = self._exchange(begun, [])
        first, second = _turns(steps, present, decision.plan)
        verdict = compare(first, second)
        kept = decision.plan if verdict.faster else present
        self._use(kept)
        self.say(_outcome(verdict, kept == decision.plan, decision, second))

    def _settle(self) -> None:
        self.settled = True
        layout = self._layout
        self._engine.plan.announce(layout.segments)
        if self._auto.plan_file is not None and self._resumed is None and self._engine.rank == 0:
            try:
                self._engine.save_plan(self._auto.plan_file, note="; ".join(self.lines))
                self.say(f"wrote {os.fspath(self._auto.plan_file)}")
            except GradweaveError as error:
                self.say(f"could not write the plan: {error}")
        self._resumed = None
        if self._auto.stop:
            self.say("the plan is settled; the program ends here, as it was asked to")
            sys.exit(0)

    def _watch(self, pause: int) -> Iterator[None]:
        """Return when the ranks were told that one of them saw a change."""
        reference: deque[Figures] = deque(maxlen=_FIRST_PAUSE)
        for _ in range(pause):
            yield
            reference += map(_figures, self._last(1))
        recent: deque[Figures] = deque(maxlen=_RECENT)
        while not self.asked:
            yield
            if not self.wants_replan:
                recent += map(_figures, self._last(1))
                self.wants_replan = len(recent) == _RECENT and _changed(reference, recent)

    # -- what it does to the engine -------------------------------------------------------------------------------------------

    @property
    def _engine(self) -> Engine:
        engine = self._ref()  # held weakly: an engine that is dropped ends at once, with its threads
        assert engine is not None
        return engine

    @property
    def _layout(self) -> Any:
        assert self._engine.layout is not None
        return self._engine.layout

    @property
    def _boundaries(self) -> tuple[int, ...]:
        boundaries: tuple[int, ...] = self._layout.boundaries
        return boundaries

    def _use(self, plan: Sequence[int]) -> None:
        if tuple(plan) != self._boundaries:
            self._engine.plan.force(SplitStrategy.by_idx(list(plan)))
            settle.lay_out(self._engine, announce=False)

    def _last(self, count: int) -> Sequence[Iteration]:
        return self._engine.recorder.recent(count)

    def _exchange(self, begun: int, sweep: list[tuple[int, float]]) -> tuple[list[StepTimes], list[tuple[int, float]]]:
        """What all ranks recorded since step `begun`; equal on all ranks."""
        count = self._engine.step - begun + 1
        told = settle.gather(self._engine, (self._last(count), sweep), "exchange of the tuner's records")
        fastest = [(rows[0][0], min(seconds for _, seconds in rows)) for rows in zip(*(rank[1] for rank in told), strict=True)]
        return step_times([rank[0] for rank in told]), fastest

    def _sweep(self, most: int) -> list[tuple[int, float]]:
        """A few small messages through the reducer: sizes that the iterations do not have."""
        engine, samples = self._engine, []
        if isinstance(engine.reducer, CommHook):
            return []  # a user's hook knows the parameters of its buckets
        device, dtype = next(iter(self._layout.arenas))
        for size in (size for size in _SWEEP_BYTES if size < most):
            flat = torch.zeros(size // dtype.itemsize, dtype=dtype, device=device)
            message = Message(Segment(0, 0, 0, size), 0, flat, 0, engine.pg, engine.group.size, False)
            state = engine.reducer.init(message)
            for _ in range(_SWEEP_REPEATS):
                begin = time.perf_counter()
                engine.reducer.start(message, state, engine.group.size).wait()
                if device.type != "cpu":
                    torch.cuda.synchronize(device)
                samples.append((size, time.perf_counter() - begin))
        return samples

    # -- what it says ---------------------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """Keep one line, show it in reports, and print it if that is wanted."""
        self.lines.append(line)
        self._engine.recorder.meta["tuner"] = "\n".join(self.lines)
        if self._auto.verbose and self._engine.rank == 0:
            print(f"gradweave: {self._engine.options.label}: {line}", file=sys.stderr, flush=True)

    def _shape(self) -> str:
        count = len(self._boundaries)
        return f"{count} segment{'s' * (count != 1)}"

    def _explain(self, decision: Decision, slowdown: float) -> None:
        now, then = decision.present.step_s, decision.predicted.step_s
        slow = f", compute is {100 * slowdown:.0f} % slower meanwhile" if slowdown > 0.01 else ""
        figures = f"cost of a message {decision.fit.describe()}{slow}; step predicted {_ms(now)}, bound {_ms(decision.bound_s)}"
        if decision.gain < self._auto.min_gain:
            self.say(f"keeps its plan of {self._shape()}: nothing to gain ({figures})")
        else:
            count = len(decision.plan)
            self.say(
                f"tries {count} segment{'s' * (count != 1)}, predicted {_ms(then)}, -{100 * decision.gain:.1f} % ({figures})"
            )


def _outcome(verdict: Verdict, accepted: bool, decision: Decision, measured: Sequence[float]) -> str:
    ratio = f"measured {100 * (verdict.ratio - 1):+.1f} % [{100 * (verdict.low - 1):+.1f}, {100 * (verdict.high - 1):+.1f}]"
    if not accepted:
        return f"keeps its plan: the new one is not faster ({ratio})"
    step = median(measured)
    return (
        f"takes the new plan: {ratio}, {_ms(step)} a step, predicted {_ms(decision.predicted.step_s)} "
        f"({100 * (step / decision.predicted.step_s - 1):+.1f} %), bound {_ms(decision.bound_s)}"
    )


def _turns(steps: Sequence[StepTimes], a: tuple[int, ...], b: tuple[int, ...]) -> tuple[list[float], list[float]]:
    """Median duration of each turn of A and of B; a turn's first iteration, in which the plan was switched, is left out."""
    runs: list[tuple[tuple[int, ...], list[StepTimes]]] = []
    for step in steps:
        if not runs or runs[-1][0] != step.plan:
            runs.append((step.plan, []))
        runs[-1][1].append(step)
    medians: dict[tuple[int, ...], list[float]] = {a: [], b: []}
    for plan, run in runs:
        if plan in medians and len(run) > 1:
            medians[plan].append(median(step.duration_s for step in run[1:]))
    pairs = min(len(medians[a]), len(medians[b]))
    return medians[a][:pairs], medians[b][:pairs]


def _figures(iteration: Iteration) -> Figures:
    """Of an iteration of this rank: seconds in collectives, and seconds of forward and backward."""
    free, moved = float("-inf"), 0.0
    for event in iteration.collectives:
        moved += max(0.0, event.end_s - max(event.start_s, free))
        free = max(free, event.end_s)
    return moved, iteration.bp_end_s - iteration.fp_start_s


def _changed(before: Iterable[Figures], now: Iterable[Figures]) -> bool:
    """Whether transfers or compute take another time: by a quarter, a twentieth of the step, and beyond their old spread."""
    old_columns, new_columns = list(zip(*before, strict=True)), list(zip(*now, strict=True))
    step = sum(map(median, old_columns))
    for old, new in zip(old_columns, new_columns, strict=True):
        low, high = sorted((median(old), median(new)))
        first, _, third = quantiles(old, n=4)
        if high > _CHANGED * low and high - low > max(0.05 * step, 2 * (third - first)):
            return True
    return False


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"
