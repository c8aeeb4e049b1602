"""Every report prints the figures of one dictionary; the HTML page, drawn by a real browser, equals its JSON."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gradweave.errors import MissingDependencyError, TraceError
from gradweave.trace import reports
from gradweave.trace.reports import print_report, summary_dict, write_chrome, write_report, write_scalars
from gradweave.trace.reports import tensorboard as scalars_module
from gradweave.trace.reports.chrome import chrome_dict
from tests.trace import browser, synthetic

needs_chromium = pytest.mark.skipif(browser.CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
HOSTILE = "</script><script>console.error('owned')</script><img src=x onerror=alert(1)>&\u2028\"'"


def hostile_run() -> list[Any]:
    return [replace(trace, label=HOSTILE, meta={HOSTILE: HOSTILE, "model": HOSTILE}) for trace in synthetic.demo_run()]


def printed(traces: list[Any], width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    print_report(traces, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def at(data: Any, key: str) -> Any:
    return reduce(lambda value, part: value[int(part)] if isinstance(value, list) else value[part], key.split("."), data)


def test_what_the_tuner_did_is_told_line_by_line(tmp_path: Path) -> None:
    lines = ["tries 3 segments, predicted 90.0 ms", "takes the new plan: measured -10.0 %"]
    traces = [replace(trace, meta={"tuner": "\n".join(lines)}) for trace in synthetic.demo_run()]
    text = printed(traces)
    assert all(f"tuner: {line}" in text for line in lines)
    assert summary_dict(traces)["wrappers"][0]["meta"]["tuner"].splitlines() == lines


# ---- the dictionary


def test_figures_are_valid_json_without_nan() -> None:
    data = summary_dict(synthetic.demo_run())
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    (wrapper,) = data["wrappers"]
    assert [plan["overlap"] for plan in wrapper["plans"]] == [False, True, True]
    assert wrapper["ranks"] == [0, 1] and wrapper["bytes"] == 40_000_000 and len(wrapper["iterations"]) == 96


def test_iterations_of_ranks_share_one_axis() -> None:
    data = summary_dict(synthetic.demo_run())
    assert all(0 <= row["offset_ms"] < 1 for row in data["wrappers"][0]["iterations"])
    first, second = synthetic.run()
    apart = summary_dict([first, replace(second, epoch_offset_s=second.epoch_offset_s + 60)])
    assert {row["offset_ms"] for row in apart["wrappers"][0]["iterations"]} == {0.0, None}, "a clock that is off hides no bar"


def test_missing_ranks_are_stated() -> None:
    assert "1 of 2 ranks" in summary_dict(synthetic.demo_run()[:1])["notes"][0]


# ---- terminal


def test_the_terminal_report_fits_100_columns() -> None:
    text = printed(synthetic.demo_run())
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    for name in ("fp_start", "bp_end", "allreduce1", "allreduce5", "data_wait", "exposed"):
        assert name in text


def test_many_segments_are_shown_as_first_middle_and_last() -> None:
    text = printed(synthetic.run(plans=((tuple(range(9, 160, 10)), True),)))
    assert re.search(r"^2-15 +10-149 ", text, re.MULTILINE) and re.search(r"^16 +150-159 ", text, re.MULTILINE)
    assert "16 segments" in text and max(map(len, text.splitlines())) <= 100


def test_tables_come_with_a_legend_and_count_what_they_leave_out() -> None:
    text = printed(synthetic.run(plans=(((39, 79, 119, 149, 159), True),)))
    assert "iteration trace, rank 0, ms from fp_start (3 more all-reduces between)" in text
    assert "(1 more all-reduce between)" in printed(synthetic.run(plans=(((39, 79, 159), True),)))
    assert "between)" not in printed(synthetic.run())
    for words in ("quartiles", "medians do not add up", "from the start of forward", "transfer: without waiting"):
        assert " ".join(text.split()).count(words) == 1
    script = (Path(reports.__file__).parent / "templates" / "report.js").read_text()
    assert "more between)" in script and "which do not add up" in script


def test_the_step_in_which_the_plan_changed_makes_no_plan_of_its_own() -> None:
    stray = replace(synthetic.iteration(2, 0.0, (3, 159), synthetic.gradients()), step=2)
    traces = [
        replace(trace, iterations=tuple(replace(stray, overlap=i.overlap) if i.step == 2 else i for i in trace.iterations))
        for trace in synthetic.run()
    ]
    (wrapper,) = summary_dict(traces)["wrappers"]
    assert [plan["plan"] for plan in wrapper["plans"]] == [[107, 159]]
    change = [row for row in wrapper["iterations"] if row["step"] == 2]
    assert len(change) == 2 and all(row["plan_index"] is None and not row["counts"] for row in change)
    assert "[0, 3]" not in printed(traces)
    only = summary_dict([replace(synthetic.trace(), iterations=(stray,))])["wrappers"][0]
    assert [plan["plan"] for plan in only["plans"]] == [[3, 159]], "unless there is nothing else"


def test_one_wrapper_is_printed_with_the_cost_of_all() -> None:
    traces = synthetic.run(plans=(((79, 159), True),), label="a") + synthetic.run(label="b")[:1]
    console = Console(width=100, file=io.StringIO())
    print_report(traces, console, only="a")
    alone = console.file.getvalue()  # type: ignore[attr-defined]
    assert "a  2 of 2 ranks" in alone and "b  1 of 2" not in alone and "note: b" not in alone
    same_link = synthetic.run(plans=(((79, 159), True),), label="a") + synthetic.run(label="b")
    print_report(same_link, console, only="a")
    assert "fitted to 3 message sizes" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_terminal_prints_the_numbers_of_the_dictionary() -> None:
    traces = synthetic.demo_run()
    plan, text = summary_dict(traces)["wrappers"][0]["plans"][1], printed(traces)
    assert f"step {plan['iteration_ms']['median']:.1f} ms" in text
    assert f"exposed {plan['exposed_ms']['median']:.1f} ms ({plan['exposed_pct']:.1f} %)" in text
    assert "Scenario 3" in text


def test_the_bound_is_an_estimate_or_says_why_it_is_unknown() -> None:
    assert "ms (an estimate: its cost is fitted to 2 message sizes" in printed(synthetic.run())
    text = printed(synthetic.run(plans=(((79, 159), True),)))
    assert "bound unknown: one message size was seen, and a cost needs two" in text
    page = (Path(reports.__file__).parent / "templates" / "report.js").read_text()
    assert "no split of whole gradients is better" not in page


def test_empty_and_silent_traces_print_something_sensible() -> None:
    assert "No iteration was recorded" in printed([])
    assert "Nothing to gain" in printed(synthetic.run(plans=(((), True),)))


# ---- Chrome trace and TensorBoard


def test_the_chrome_trace_has_a_process_a_rank_on_one_axis(tmp_path: Path) -> None:
    traces = synthetic.run(steps_each=3)
    events = [event for event in chrome_dict(traces)["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 1} and min(event["ts"] for event in events) == 0
    assert all(event["dur"] >= 0 for event in events)
    first = {event["pid"]: event for event in reversed(events) if event["name"] == "all_reduce 1"}
    assert first[0]["ts"] == pytest.approx(first[1]["ts"], abs=1) and first[0]["tid"] == 2
    assert (first[0]["args"]["bytes"], first[0]["args"]["first_index"], first[0]["args"]["last_index"]) == (27_000_000, 0, 107)
    assert {"forward", "backward", "optimizer", "data wait", "step 0"} <= {event["name"] for event in events}
    path = write_chrome(traces, tmp_path / "new" / "trace.json.gz")
    assert (
        json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        == json.loads(json.dumps(chrome_dict(traces)))["traceEvents"]
    )


def test_tensorboard_reads_the_scalars_back_without_torch(tmp_path: Path) -> None:
    loader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    traces = synthetic.run(steps_each=4)
    folders = write_scalars(traces, tmp_path)
    events = loader.EventAccumulator(str(folders[1]))
    events.Reload()
    exposed = events.Scalars("gradweave/exposed_ms")
    rows = [row for row in summary_dict(traces)["wrappers"][0]["iterations"] if row["rank"] == 1]
    assert [(point.step, point.value) for point in exposed] == [
        (row["step"], pytest.approx(row["exposed_ms"], rel=1e-4)) for row in rows
    ]
    assert {"gradweave/iteration_ms", "gradweave/segment_2/exposed_ms"} <= set(events.Tags()["scalars"])


def test_without_tensorboard_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    with pytest.raises(MissingDependencyError, match="pip install tensorboard"):
        scalars_module.write_scalars(synthetic.run(steps_each=1), tmp_path)


def test_reports_need_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import gradweave.trace, gradweave.trace.reports"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


# ---- HTML


def test_the_page_is_one_file_that_asks_nothing_of_the_network(tmp_path: Path) -> None:
    html = write_report(synthetic.demo_run(), tmp_path / "deep" / "report.html").read_text()
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["report.html"]
    assert re.findall(r"https?://[^\"' )]+", html) == ["http://www.w3.org/2000/svg"], "only the name of a namespace"
    assert "default-src 'none'" in html and "@media print" in html and "prefers-color-scheme: dark" in html
    assert not re.search(r"<link[^>]+stylesheet|<script[^>]+src=|@import|url\((?!#)", html)


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    html = write_report(hostile_run(), tmp_path / "report.html").read_text()
    assert "<img src=x" not in html and html.count("<script") == 2
    block = re.search(r'id="gradweave-data">(.*?)</script>', html, re.DOTALL)
    assert block is not None and json.loads(block.group(1)) == summary_dict(hostile_run())


def test_no_iterations_make_no_report(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no iteration to report"):
        write_report([], tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


RUNS = {
    "two ranks, three plans": synthetic.demo_run,
    "one rank, unknown bound": lambda: [synthetic.trace(with_ready=False)],
    "twenty ranks": lambda: synthetic.run(20, steps_each=3),
    "no communication": lambda: synthetic.run(plans=(((), True),)),
    "two wrappers": lambda: synthetic.run(label="a") + synthetic.run(label="b"),
    "hostile names": hostile_run,
}


@needs_chromium
@pytest.mark.parametrize("case", RUNS)
def test_a_browser_draws_the_page_silently_with_the_numbers_of_the_json(tmp_path: Path, case: str) -> None:
    traces = RUNS[case]()
    data = summary_dict(traces)
    page = browser.open_page(write_report(traces, tmp_path / "report.html"), tmp_path / "profile")
    assert page.complaints == []
    assert len(page.numbers) > 10
    for key, shown in page.numbers.items():
        value = at(data, key)
        for text, digits in shown:
            assert abs(float(text) - value) <= 0.5 * 10.0**-digits + 1e-9, (key, text, value)
    plan = len(data["wrappers"][0]["plans"]) - 1
    assert {f"wrappers.0.plans.{plan}.{name}" for name in ("iteration_ms.median", "exposed_ms.median", "exposed_pct")} <= set(
        page.numbers
    )
    assert "NaN" not in page.text and "undefined" not in page.text


@needs_chromium
def test_the_browser_check_hears_an_error(tmp_path: Path) -> None:
    path = write_report([synthetic.trace(steps_each=3)], tmp_path / "report.html")
    path.write_text(path.read_text().replace('"exposed_ms":', '"renamed_ms":'))
    assert browser.open_page(path, tmp_path / "profile").complaints
