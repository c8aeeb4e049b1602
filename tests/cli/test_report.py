"""`gradweave report`: what is printed, what is written, without torch."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from gradweave.model import CollectiveEvent, GradientInfo, Iteration, Trace
from gradweave.trace.files import file_name, save_trace
from tests.cli.command import environment, gradweave, gradweave_without_torch

GRADIENTS = (GradientInfo("b", (100,), "float32", 400), GradientInfo("a", (300,), "float32", 1200))


def iteration(step: int, late_s: float) -> Iteration:
    """40 ms: forward 10, backward to 30; the first segment hidden, the second exposed for 5 ms."""
    start = 1.0 + 0.04 * step
    return Iteration(
        step=step,
        previous_end_s=start,
        fp_start_s=start,
        fp_end_s=start + 0.010,
        bp_end_s=start + 0.030,
        iteration_end_s=start + 0.040,
        ready_s=(start + 0.015, start + 0.030),
        plan=(0, 1),
        collectives=(
            CollectiveEvent(0, 0, 0, 400, "float32", start + 0.016 + late_s, start + 0.020, start + 0.015),
            CollectiveEvent(1, 1, 1, 1200, "float32", start + 0.030, start + 0.035, start + 0.030),
        ),
    )


@pytest.fixture
def traces(tmp_path):
    """Two ranks, six iterations."""
    for rank in (0, 1):
        events = tuple(iteration(step, 0.001 * rank) for step in range(6))
        trace = Trace(rank, 2, "world", "gloo", "demo", 1_000.0, GRADIENTS, events)
        save_trace(trace, tmp_path / "traces" / file_name(rank, "demo"))
    return tmp_path / "traces"


def test_tables_show_the_segments_and_the_exposed_time(traces):
    result = gradweave("report", traces, COLUMNS="120")
    assert result.returncode == 0, result.stderr
    assert "[0, 0] [1, 1]" in result.stdout
    assert "exposed 5.0 ms (12.5 %)" in result.stdout


def test_json_is_one_document_and_agrees_with_the_events(traces):
    result = gradweave("report", traces, "--json")
    document = json.loads(result.stdout)
    plan = document["wrappers"][0]["plans"][0]
    assert plan["exposed_ms"]["median"] == pytest.approx(5.0, abs=1e-3)
    assert plan["iteration_ms"]["median"] == pytest.approx(40.0, abs=1e-3)
    assert [segment["bytes"] for segment in plan["segments"]] == [400, 1200]


def test_files_are_written_where_asked_and_named_on_stderr(traces, tmp_path):
    page, chrome, board = tmp_path / "r.html", tmp_path / "c.json", tmp_path / "tb"
    result = gradweave("report", traces, "-o", page, "--chrome", chrome, "--tensorboard", board, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["wrappers"]
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")
    assert json.loads(chrome.read_text())["traceEvents"]
    assert list(board.rglob("events.out.tfevents.*"))
    assert result.stderr.count("written: ") == 3


def test_it_works_without_torch(traces, tmp_path):
    result = gradweave_without_torch("report", traces, "-o", tmp_path / "r.html", "--json")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "r.html").is_file()


def test_without_tensorboard_nothing_is_written(traces, tmp_path):
    code = "import sys; sys.modules['tensorboard'] = None; sys.argv[1:] = sys.argv[2:]\nfrom gradweave.cli import main\nmain()"
    arguments = ["report", str(traces), "-o", str(tmp_path / "r.html"), "--tensorboard", str(tmp_path / "tb")]
    result = subprocess.run(
        [sys.executable, "-c", code, "-", *arguments], env=environment(), capture_output=True, text=True, timeout=50
    )
    assert result.returncode == 1 and "pip install tensorboard" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


@pytest.mark.parametrize("folder", ["absent", ""])
def test_a_folder_without_traces_names_the_command_that_makes_them(tmp_path, folder):
    result = gradweave("report", tmp_path / folder, COLUMNS="300")
    assert result.returncode == 1
    assert "fix:  make traces first: gradweave run --trace " in result.stderr


def test_a_folder_that_is_not_there_is_a_failure_with_the_way_out(tmp_path):
    result = gradweave("report", tmp_path / "absent")
    assert (result.returncode, result.stdout) == (1, "")
    assert "there is no folder" in result.stderr


@pytest.mark.parametrize("place", [".", "", "traces"])
@pytest.mark.parametrize("option", ["-o", "--chrome"])
def test_a_folder_is_no_file_to_write(traces, place, option):
    result = gradweave("report", traces, option, traces if place == "traces" else place)
    assert (result.returncode, result.stdout) == (1, "")
    assert "Traceback" not in result.stderr
    assert "error: cannot write" in result.stderr and "rule: the path names a file" in result.stderr
    assert [path.name for path in traces.parent.iterdir()] == ["traces"], "no half-written file stays behind"


def test_a_place_that_cannot_be_written_is_one_message(traces, tmp_path):
    (tmp_path / "file").touch()
    result = gradweave("report", traces, "-o", tmp_path / "file" / "r.html")
    assert result.returncode == 1
    assert "error:" in result.stderr and "Traceback" not in result.stderr
