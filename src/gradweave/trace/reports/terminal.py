"""The iteration trace and its summary as tables that fit 100 columns.

Columns are those of the Ascend iteration trace (fp_start, bp_end, allreduceN_start, allreduceN_end, iteration_end), in ms from
fp_start, plus exposed time. More than four segments are shown as the first, the last, and what is between. Every figure comes
from `summary_dict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradweave.model.events import Trace
from gradweave.trace.reports.data import summary_dict
from gradweave.trace.words import plan_text, size

Json = dict[str, Any]
_MOST_SEGMENTS = 4
_MOST_PAIRS = 2
LEGEND = (
    "[a, b]: quartiles; medians do not add up; start: from the start of forward; transfer: without waiting for late ranks; "
    "late rank: last in two thirds of the steps or more, and how late"
)


def print_report(traces: Sequence[Trace], console: Console | None = None, *, rows: int = 8, only: str | None = None) -> None:
    """Print every wrapper and plan of the traces.

    Args:
        traces: see `load_dir`.
        console: where to print; standard output by default.
        rows: iterations shown a plan (of the lowest rank), the last ones.
        only: label of the wrapper to print; None prints all. The cost stands on all traces in either case.
    """
    data = summary_dict(traces)
    if only is not None:
        data["wrappers"] = [wrapper for wrapper in data["wrappers"] if wrapper["label"] == only]
        data["notes"] = [note for note in data["notes"] if note.startswith(f"{only}: ")]
    (console or Console()).print(render(data, rows=rows))


def render(data: Json, *, rows: int = 8) -> RenderableType:
    """The report as a rich renderable, from what `summary_dict` returned."""
    parts: list[RenderableType] = [Text(f"note: {note}", style="yellow") for note in data["notes"]]
    if not data["wrappers"]:
        parts.append(Text("No iteration was recorded."))
    for wrapper in data["wrappers"]:
        parts.append(_heading(wrapper))
        parts += [Text(f"tuner: {line}") for line in wrapper["meta"].get("tuner", "").splitlines()]
        for index, plan in enumerate(wrapper["plans"]):
            parts += [*_plan(wrapper, plan, index, rows), Text()]
    if data["wrappers"]:
        parts.append(Text(LEGEND, style="dim"))
    return Group(*parts)


def _heading(wrapper: Json) -> Text:
    ranks = f"{len(wrapper['ranks'])} of {wrapper['world_size']} ranks"
    load = f"{wrapper['gradients']} gradients, {size(wrapper['bytes'])}"
    where = f"{ranks} | {wrapper['backend']} | group {wrapper['group']} | {load}"
    return Text.assemble((wrapper["label"], "bold"), f"  {where}")


def _plan(wrapper: Json, plan: Json, index: int, rows: int) -> list[RenderableType]:
    mode = "overlapped" if plan["overlap"] else "serial"
    title = Text.assemble(("\nsegment index list: ", "dim"), _short_plan(plan["plan"]), f"  ({mode}, {_steps(plan['steps'])})")
    shown = [row for row in wrapper["iterations"] if row["plan_index"] == index and row["counts"]]
    one_rank = [row for row in shown if row["rank"] == shown[0]["rank"]]
    return [
        title,
        Text(),
        iteration_table(one_rank[-rows:], f"iteration trace, rank {one_rank[0]['rank']}, ms from fp_start"),
        Text(),
        segment_table(plan),
        Padding(summary_line(plan), (1, 0, 0, 0)),
        bound_line(plan),
        scenario_line(plan),
    ]


def iteration_table(rows: Sequence[Json], title: str) -> Table:
    """One line an iteration; at most two pairs of all-reduce columns, the first and the last; the title counts the others."""
    last = max((item["segment"] for row in rows for item in row["collectives"]), default=-1)
    pairs = list(range(last + 1)) if last < _MOST_PAIRS else [0, last]
    if last + 1 > len(pairs):
        title += f" ({last + 1 - len(pairs)} more all-reduce{'s' * (last + 1 > len(pairs) + 1)} between)"
    table = Table(title=title, title_justify="left", box=None, header_style="dim", padding=(0, 1, 0, 0), title_style="italic")
    names = ["step", "data_wait", "fp_start", "bp_end"]
    for segment in pairs:
        names += [f"allreduce{segment + 1}\n_start", f"allreduce{segment + 1}\n_end"]
    for name in [*names, "iteration\n_end", "exposed"]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [str(row["step"]), _number(row["data_wait_ms"]), "0.0", _number(row["bp_end_ms"])]
        for segment in pairs:
            items = [item for item in row["collectives"] if item["segment"] == segment]
            cells += [
                _number(min((i["start_ms"] for i in items), default=None)),
                _number(max((i["end_ms"] for i in items), default=None)),
            ]
        table.add_row(
            *cells, _number(row["iteration_end_ms"]), _number(row["exposed_ms"]), style=None if row["counts"] else "dim"
        )
    return table


def segment_table(plan: Json) -> Table:
    """One line a segment; the middle ones are summed up when there are more than four."""
    table = Table(
        title="segments, medians",
        title_justify="left",
        box=None,
        header_style="dim",
        padding=(0, 1, 0, 0),
        title_style="italic",
    )
    table.add_column("segment", no_wrap=True)
    for name in ("indices", "bytes", "share", "start", "time", "transfer", "hidden", "exposed", "bus GB/s", "late rank"):
        table.add_column(name, justify="right", no_wrap=True)
    segments = plan["segments"]
    if len(segments) <= _MOST_SEGMENTS:
        shown = [_segment_row(segment) for segment in segments]
    else:
        shown = [_segment_row(segments[0]), _middle_row(segments[1:-1]), _segment_row(segments[-1])]
    for row in shown:
        table.add_row(*row)
    return table


def _segment_row(segment: Json) -> list[str]:
    return [
        str(segment["index"] + 1),
        f"{segment['first']}-{segment['last']}",
        size(segment["bytes"]),
        f"{segment['share_pct']:.1f} %",
        _number(segment["start_ms"]["median"]),
        _number(segment["duration_ms"]["median"]),
        _number(segment["transfer_ms"]),
        _percent(segment["hidden_pct"]),
        _number(segment["exposed_ms"]["median"]),
        "-" if segment["bus_gb_per_s"] is None else f"{segment['bus_gb_per_s']:.2f}",
        _late(segment),
    ]


def _late(segment: Json) -> str:
    if segment["late_rank"] is None:
        return "alternate" if segment["ranks_alternate"] else "-"
    return f"{segment['late_rank']} ({_number(segment['lateness_ms']['median'])} ms)"


def _middle_row(segments: Sequence[Json]) -> list[str]:
    hidden, exposed = (sum(segment[f"{name}_ms"]["median"] for segment in segments) for name in ("hidden", "exposed"))
    return [
        f"{segments[0]['index'] + 1}-{segments[-1]['index'] + 1}",
        f"{segments[0]['first']}-{segments[-1]['last']}",
        size(sum(segment["bytes"] for segment in segments)),
        f"{sum(segment['share_pct'] for segment in segments):.1f} %",
        _number(segments[0]["start_ms"]["median"]),
        _number(sum(segment["duration_ms"]["median"] for segment in segments)),
        _number(sum(segment["transfer_ms"] for segment in segments)),
        _percent(100 * hidden / (hidden + exposed) if hidden + exposed > 0 else None),
        _number(exposed),
        "",
        "",
    ]


def summary_line(plan: Json) -> Text:
    """Step time, exposed time and hidden share in one line."""
    step = plan["iteration_ms"]
    return Text.assemble(
        "step ", (f"{step['median']:.1f} ms", "bold"), f" [{step['q1']:.1f}, {step['q3']:.1f}]",
        "   exposed ", (f"{plan['exposed_ms']['median']:.1f} ms ({plan['exposed_pct']:.1f} %)", "bold"),
        f"   hidden {_percent(plan['hidden_pct'])}",
    )  # fmt: skip


def bound_line(plan: Json) -> Text:
    """The estimate of what any split leaves exposed and what it stands on, or why there is none."""
    bound = plan["bound"]
    if bound["exposed_ms"] is None:
        return Text(f"bound unknown: {bound['reason']}", style="dim")
    return Text(f"bound {bound['exposed_ms']:.1f} ms ({bound['basis']})", style="dim")


def scenario_line(plan: Json) -> Text:
    """The scenario in words, or why there is none."""
    return Text(plan["verdict"], style="green" if plan["scenario"] is None else "cyan")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.2f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def _steps(steps: Sequence[int]) -> str:
    return f"{len(steps)} iteration{'s' * (len(steps) != 1)} from step {steps[0]}"


def _short_plan(plan: Sequence[int]) -> str:
    if len(plan) <= _MOST_SEGMENTS:
        return plan_text(plan) or "unknown"
    return f"[0, {plan[0]}] ... [{plan[-2] + 1}, {plan[-1]}], {len(plan)} segments"
