"""The figures that every report shows, as one JSON-ready dictionary.

`--json`, the HTML page and the terminal table print from here, so that they cannot differ. Times are in ms, rounded to 0.1 us;
within an iteration they count from its fp_start. Unknown is None.

    {schema, schema_version, notes, wrappers: [
        {label, group, backend, world_size, ranks, meta, gradients, bytes,
         plans: [{plan, overlap, steps, iteration_ms: {median, q1, q3, count}, ..., segments, per_rank, bound,
                 scenario, verdict}],
         iterations: [{rank, step, plan_index, offset_ms, ..., collectives}]}]}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gradweave.model.events import Trace
from gradweave.trace.analysis import CollectiveReport, IterationReport, algorithm_bytes_per_s, bus_bytes_per_s
from gradweave.trace.files import notes
from gradweave.trace.scenario import Scenario, diagnose, noise_s, silence
from gradweave.trace.stats import Spread, median, spread
from gradweave.trace.summary import PlanSummary, SegmentSummary, WrapperSummary, plan_key, summarise

SCHEMA = "gradweave.report"
SCHEMA_VERSION = 1
Json = dict[str, Any]


def summary_dict(traces: Sequence[Trace]) -> Json:
    """Analyse traces of any ranks and wrappers.

    Returns:
        The dictionary above; `wrappers` is empty when nothing was recorded.

    Example:
        >>> summary_dict([])["wrappers"]
        []
    """
    wrappers = summarise(traces)
    said = notes(traces) + [note for wrapper in wrappers for note in wrapper.notes]
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "notes": said,
        "wrappers": [_wrapper(wrapper) for wrapper in wrappers],
    }


def _wrapper(wrapper: WrapperSummary) -> Json:
    first = wrapper.traces[0]
    return {
        "label": wrapper.label,
        "group": first.group,
        "backend": first.backend,
        "world_size": first.world_size,
        "ranks": [trace.rank for trace in wrapper.traces],
        "meta": dict(first.meta),
        "gradients": len(first.gradients),
        "bytes": sum(wrapper.sizes_bytes),
        "plans": [_plan(plan, wrapper) for plan in wrapper.plans],
        "iterations": _iterations(wrapper),
    }


def _plan(plan: PlanSummary, wrapper: WrapperSummary) -> Json:
    return {
        "plan": list(plan.plan),
        "overlap": plan.overlap,
        "steps": list(plan.steps),
        "warm_up_counts": plan.warm_up_counts,
        "iteration_ms": _spread(plan.iteration_s),
        "data_wait_ms": _spread(plan.data_wait_s),
        "fp_ms": _spread(plan.fp_s),
        "bp_ms": _spread(plan.bp_s),
        "fp_to_bp_ms": _spread(plan.fp_to_bp_s),
        "tail_ms": _spread(plan.tail_s),
        "optimizer_ms": _spread(plan.optimizer_s),
        "communication_ms": _spread(plan.communication_s),
        "hidden_ms": _spread(plan.hidden_s),
        "exposed_ms": _spread(plan.exposed_s),
        "hidden_pct": _round(plan.hidden_pct),
        "exposed_pct": _round(plan.exposed_pct),
        "noise_ms": _ms(noise_s(plan)),
        "bound": {
            "exposed_ms": _ms(plan.bound.exposed_s),
            "reason": plan.bound.reason,
            "basis": None if plan.bound.exposed_s is None else plan.bound.basis,
            "message_sizes": plan.bound.sizes,
            "alpha_ms": _ms(plan.bound.cost.alpha_s) if plan.bound.cost else None,
            "ms_per_mib": _ms(plan.bound.cost.beta_s_per_byte * 2**20) if plan.bound.cost else None,
        },
        "segments": [_segment(segment, wrapper) for segment in plan.segments],
        "per_rank": _per_rank(plan),
        **_verdict(plan, wrapper.sizes_bytes),
    }


def _segment(segment: SegmentSummary, wrapper: WrapperSummary) -> Json:
    size, transfer, skew = segment.size_bytes, segment.transfer_s, segment.skew
    kind = next((item.event.kind for report in wrapper.reports for item in report.collectives), "all_reduce")
    bus = bus_bytes_per_s(size, transfer, wrapper.traces[0].world_size, kind)
    algorithm = algorithm_bytes_per_s(size, transfer)
    return {
        "index": segment.index,
        "first": segment.first,
        "last": segment.last,
        "gradients": segment.last - segment.first + 1,
        "bytes": size,
        "share_pct": _round(segment.share_pct),
        "start_ms": _spread(segment.start_s),
        "end_ms": _spread(segment.end_s),
        "duration_ms": _spread(segment.duration_s),
        "hidden_ms": _spread(segment.hidden_s),
        "exposed_ms": _spread(segment.exposed_s),
        "hidden_pct": _round(segment.hidden_pct),
        "transfer_ms": _ms(transfer),
        "wait_ms": _spread(skew.wait_s) if skew else None,
        "late_rank": skew.late_rank if skew else None,
        "late_steps": skew.late_steps if skew else None,
        "ranks_alternate": skew.ranks_alternate if skew else None,
        "lateness_ms": _spread(skew.lateness_s) if skew else None,
        "bus_gb_per_s": _round(bus / 1e9 if bus is not None else None),
        "algorithm_gb_per_s": _round(algorithm / 1e9 if algorithm is not None else None),
    }


def _per_rank(plan: PlanSummary) -> list[Json]:
    by_rank: dict[int, list[IterationReport]] = defaultdict(list)
    for report in plan.reports:
        by_rank[report.rank].append(report)
    return [
        {
            "rank": rank,
            "iteration_ms": _spread(spread(report.iteration_s for report in reports)),
            "fp_to_bp_ms": _spread(spread(report.fp_to_bp_s for report in reports)),
            "exposed_ms": _spread(spread(report.exposed_s for report in reports)),
            "data_wait_ms": _spread(spread(report.data_wait_s for report in reports)),
        }
        for rank, reports in sorted(by_rank.items())
    ]


def _verdict(plan: PlanSummary, sizes_bytes: Sequence[int]) -> Json:
    found = diagnose(plan, sizes_bytes)
    if found is None:
        return {"scenario": None, "verdict": silence(plan)}
    return {"scenario": _scenario(found), "verdict": found.text}


def _scenario(found: Scenario) -> Json:
    return {
        "number": found.number,
        "title": found.title,
        "symptom": found.symptom,
        "advice": found.advice,
        "text": found.text,
        "plan": None if found.plan is None else list(found.plan),
        "expected_exposed_ms": _ms(found.expected_exposed_s),
    }


def _iterations(wrapper: WrapperSummary) -> list[Json]:
    """Every iteration, warm-up too, by step and rank."""
    index_of = {(plan.plan, plan.overlap): index for index, plan in enumerate(wrapper.plans)}
    counted = {id(report.iteration) for plan in wrapper.plans for report in plan.reports}
    clocks = {trace.rank: trace.epoch_offset_s for trace in wrapper.traces}
    origin: dict[int, float] = {}
    for report in wrapper.reports:
        at = report.iteration.fp_start_s + clocks[report.rank]
        origin[report.step] = min(origin.get(report.step, at), at)
    length = median(report.iteration_s for report in wrapper.reports)
    rows = []
    for report in sorted(wrapper.reports, key=lambda report: (report.step, report.rank)):
        offset = report.iteration.fp_start_s + clocks[report.rank] - origin[report.step]
        row = _iteration(report, index_of.get(plan_key(report)), id(report.iteration) in counted)
        rows.append({**row, "offset_ms": _ms(offset) if offset < length else None})
    return rows


def _iteration(report: IterationReport, plan_index: int | None, counts: bool) -> Json:
    iteration = report.iteration
    start = iteration.fp_start_s
    return {
        "rank": report.rank,
        "step": report.step,
        "plan_index": plan_index,
        "counts": counts,
        "overlap": iteration.overlap,
        "iteration_ms": _ms(report.iteration_s),
        "data_wait_ms": _ms(report.data_wait_s),
        "fp_end_ms": _ms(report.fp_s),
        "bp_end_ms": _ms(report.fp_to_bp_s),
        "iteration_end_ms": _ms(iteration.iteration_end_s - start),
        "tail_ms": _ms(report.tail_s),
        "optimizer_ms": _ms(report.optimizer_s),
        "communication_ms": _ms(report.communication_s),
        "hidden_ms": _ms(report.hidden_s),
        "exposed_ms": _ms(report.exposed_s),
        "collectives": [_collective(item, start) for item in report.collectives],
    }


def _collective(item: CollectiveReport, start: float) -> Json:
    event = item.event
    return {
        "segment": event.segment,
        "first": event.first,
        "last": event.last,
        "bytes": event.size_bytes,
        "dtype": event.dtype,
        "kind": event.kind,
        "ready_ms": None if event.ready_s is None else _ms(event.ready_s - start),
        "start_ms": _ms(event.start_s - start),
        "effective_start_ms": _ms(item.effective_start_s - start),
        "end_ms": _ms(event.end_s - start),
        "hidden_ms": _ms(item.hidden_s),
        "exposed_ms": _ms(item.exposed_s),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 4) + 0.0  # + 0.0 turns -0.0 into 0.0


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4) + 0.0


def _spread(found: Spread | None) -> Json | None:
    if found is None:
        return None
    return {"median": _ms(found.median), "q1": _ms(found.q1), "q3": _ms(found.q3), "count": found.count}
