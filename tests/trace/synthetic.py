"""Traces of a machine that exists on paper: known ready times, an affine channel, ranks that are late by a known amount."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from gradweave.model.events import CollectiveEvent, Iteration, Trace
from gradweave.model.segment import GradientInfo, segments_from_boundaries

FP_S, BP_S, OPTIMIZER_S, WAIT_S = 0.020, 0.040, 0.005, 0.002
ALPHA_S, BYTES_PER_S = 0.0005, 1e9


def gradients(count: int = 160, size_bytes: int = 250_000) -> tuple[GradientInfo, ...]:
    return tuple(
        GradientInfo(f"layers.{index // 4}.weight{index % 4}", (size_bytes // 4,), "float32", size_bytes)
        for index in range(count)
    )


def transfer_s(size_bytes: float) -> float:
    return ALPHA_S + size_bytes / BYTES_PER_S


def iteration(
    step: int,
    start_s: float,
    plan: Sequence[int],
    infos: Sequence[GradientInfo],
    *,
    overlap: bool = True,
    late_s: float = 0.0,
    peers_late_s: float = 0.0,
    stretch: float = 1.0,
    with_ready: bool = True,
) -> Iteration:
    """One iteration that began (data wait first) at `start_s`; a collective starts to move when the latest rank has come."""
    fp_start = start_s + WAIT_S
    fp_end = fp_start + FP_S * stretch + late_s
    done = list(accumulate(info.size_bytes for info in infos))
    ready = [fp_end + BP_S * stretch * (bytes_so_far / done[-1]) for bytes_so_far in done]
    bp_end = ready[-1]
    events, free = [], 0.0
    for segment in segments_from_boundaries(plan, [info.size_bytes for info in infos]):
        launch = ready[segment.last] if overlap else max(bp_end, ready[segment.last])
        everyone = launch + max(0.0, peers_late_s - late_s)
        end = max(everyone, free) + transfer_s(segment.size_bytes)
        events.append(
            CollectiveEvent(
                segment.index,
                segment.first,
                segment.last,
                segment.size_bytes,
                "float32",
                launch,
                end,
                ready_s=ready[segment.last],
            )
        )
        free = end
    end_s = max(bp_end, free) + OPTIMIZER_S
    return Iteration(
        step=step,
        previous_end_s=start_s,
        fp_start_s=fp_start,
        fp_end_s=fp_end,
        bp_end_s=bp_end,
        iteration_end_s=end_s,
        collectives=tuple(events),
        ready_s=tuple(ready) if with_ready else (),
        plan=tuple(plan),
        overlap=overlap,
    )


def trace(
    plans: Sequence[tuple[Sequence[int], bool]] = (((107, 159), True),),
    *,
    rank: int = 0,
    world_size: int = 2,
    label: str = "gpt",
    steps_each: int = 12,
    late_rank: int | None = None,
    late_s: float = 0.003,
    jitter: float = 0.0,
    count: int = 160,
    size_bytes: int = 250_000,
    with_ready: bool = True,
) -> Trace:
    """A rank's trace: `steps_each` iterations of each (plan, overlap); clocks of the ranks start at different zeros."""
    infos, wobble = gradients(count, size_bytes), random.Random(7)
    clock, step, iterations = 100.0 * (rank + 1), 0, []
    for plan, overlap in plans:
        for _ in range(steps_each):
            # all ranks draw the same stretch: their iterations stay in step
            stretch = (1.6 if step == 0 else 1.0) * (1 + jitter * wobble.random())
            item = iteration(
                step,
                clock,
                plan,
                infos,
                overlap=overlap,
                stretch=stretch,
                with_ready=with_ready,
                late_s=late_s if rank == late_rank else 0.0,
                peers_late_s=late_s if late_rank is not None else 0.0,
            )
            iterations.append(item)
            clock, step = item.iteration_end_s, step + 1
    return Trace(
        rank=rank,
        world_size=world_size,
        group="world",
        backend="gloo",
        label=label,
        epoch_offset_s=1_700_000_000.0 - 100.0 * (rank + 1),
        gradients=infos,
        iterations=tuple(iterations),
        meta={"model": "gpt-small (10.0 M parameters)", "torch": "2.13.0", "gradweave": "0.1.0", "host": "node0"},
    )


def shifted(item: Iteration, by_s: float) -> Iteration:
    """The same iteration on another clock."""
    return replace(
        item,
        previous_end_s=None if item.previous_end_s is None else item.previous_end_s + by_s,
        fp_start_s=item.fp_start_s + by_s,
        fp_end_s=None if item.fp_end_s is None else item.fp_end_s + by_s,
        bp_end_s=item.bp_end_s + by_s,
        iteration_end_s=item.iteration_end_s + by_s,
        ready_s=tuple(None if at is None else at + by_s for at in item.ready_s),
        collectives=tuple(
            replace(
                event,
                start_s=event.start_s + by_s,
                end_s=event.end_s + by_s,
                ready_s=None if event.ready_s is None else event.ready_s + by_s,
            )
            for event in item.collectives
        ),
    )


def slower(item: Iteration, by_s: float) -> Iteration:
    """The same iteration with a forward that takes longer."""
    late = shifted(item, by_s)
    return replace(late, previous_end_s=item.previous_end_s, fp_start_s=item.fp_start_s)


def run(world_size: int = 2, **options: object) -> list[Trace]:
    """Traces of every rank."""
    return [trace(rank=rank, world_size=world_size, **options) for rank in range(world_size)]  # type: ignore[arg-type]


def demo_run() -> list[Trace]:
    """Two ranks, three plans: serial, the classic default, and a good one; rank 1 is late."""
    return run(
        plans=(((153, 159), False), ((79, 159), True), ((79, 119, 143, 155, 159), True)),
        late_rank=1,
        jitter=0.08,
        late_s=0.002,
        steps_each=16,
    )
