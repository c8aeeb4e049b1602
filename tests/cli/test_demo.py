"""`gradweave demo`: the main job in miniature, with real processes, and Ctrl-C in its middle."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import uuid
from dataclasses import replace

import pytest
from rich.console import Console

from gradweave.cli.demo import clear_folder, comparison_table, differences
from gradweave.trace.files import load_dir
from gradweave.trace.summary import summarise
from tests.cli.command import COMMAND, environment, gradweave, gradweave_without_torch, processes_with, wait_until
from tests.trace import synthetic


def test_the_demo_trains_with_three_splits_and_writes_a_report(tmp_path):
    result = gradweave("demo", "--seconds", "6", "--out", tmp_path / "out", "--json", timeout=58)
    assert result.returncode == 0, result.stderr[-3000:]
    document = json.loads(result.stdout)
    assert document["processes"] == 2
    assert 1_000_000 <= document["parameters"] <= 3_000_000
    names = [phase["name"] for phase in document["phases"]]
    assert names == ["default split", "by size [60, 20, 20]", "by index"]
    assert len(document["phases"][1]["segments"]) == 3
    assert len(document["phases"][2]["segments"]) == 4
    assert document["validation_loss"]["end"] < document["validation_loss"]["start"] - 1.0
    assert document["phases"][2]["loss"]["end"] < document["validation_loss"]["start"] - 1.0
    assert (tmp_path / "out" / "report.html").is_file()
    traces = load_dir(document["traces"])
    assert [(trace.label.split()[0], trace.rank) for trace in traces] == [(n, r) for r in (0, 1) for n in "123"]
    assert result.stderr.count("segment index list") == 3
    assert "tokens/s" in result.stderr


def phases(*plans):
    """One wrapper a plan, on a machine that is known."""
    runs = [synthetic.run(plans=((plan, True),), label=f"{number} {plan}") for number, plan in enumerate(plans, start=1)]
    return summarise([trace for run in runs for trace in run])


def test_phases_are_compared_by_exposed_time_and_noise_is_called_noise():
    same, worse = differences(phases((79, 159), (79, 159), (159,)))
    assert same == "2 (79, 159) against 1 (79, 159): no difference beyond noise (the quartiles of the exposed time overlap)"
    assert worse == "3 (159,) against 1 (79, 159): 19.50 ms more exposed"


def test_drift_of_computing_is_told_from_the_split():
    slow = synthetic.run(plans=(((79, 159), True),), label="2 slow")
    slow = [
        replace(trace, iterations=tuple(synthetic.slower(iteration, 0.012) for iteration in trace.iterations)) for trace in slow
    ]
    (line,) = differences(summarise([*synthetic.run(plans=(((79, 159), True),), label="1 fast"), *slow]))
    assert "no difference beyond noise" in line and "forward and backward took 12.00 ms more" in line


def test_the_comparison_shows_forward_and_backward_beside_the_step():
    console = Console(width=100, file=io.StringIO())
    console.print(comparison_table(phases((79, 159), (159,))))
    text = console.file.getvalue()
    assert "+ backward" in text and text.count("60.0 ms") == 2
    assert "40.50 ms [40.50, 40.50]" in text and max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("left", ["traces/gradweave-rank00000-a.json", "result.json", "report.html"])
def test_an_earlier_run_is_replaced_only_when_that_is_asked_for(tmp_path, left):
    (tmp_path / left).parent.mkdir(exist_ok=True)
    (tmp_path / left).write_text("{}")
    result = gradweave("demo", "--out", tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "already holds an earlier run" in result.stderr and "--overwrite" in result.stderr
    assert (tmp_path / left).is_file()
    clear_folder(tmp_path, overwrite=True)
    assert not (tmp_path / left).exists()


def test_without_torch_nothing_is_said_to_start(tmp_path):
    result = gradweave_without_torch("demo", "--out", tmp_path / "out")
    assert result.returncode == 1
    assert "needs PyTorch" in result.stderr and "starting" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_ctrl_c_in_the_middle_of_training_leaves_no_process(tmp_path):
    token = uuid.uuid4().hex
    process = subprocess.Popen(
        [*COMMAND, "demo", "--seconds", "300", "--out", str(tmp_path)],
        env=environment(GRADWEAVE_TEST_TOKEN=token),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        seen = next(line for line in process.stderr if "tokens/s" in line)
        assert "step" in seen
        assert len(processes_with(token)) == 3
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=25)
        assert process.returncode == 130
        assert "Traceback" not in errors
        assert wait_until(lambda: not processes_with(token), timeout=5)
        assert not (tmp_path / "report.html").exists()
    finally:
        for pid in processes_with(token):
            os.kill(pid, signal.SIGKILL)
        process.wait()
