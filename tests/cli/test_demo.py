"""`gradweave demo`: the main job in miniature, with real processes, and Ctrl-C in its middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid

import pytest

from gradweave.cli.demo import clear_folder
from gradweave.trace.files import load_dir
from tests.cli.command import COMMAND, environment, gradweave, gradweave_without_torch, processes_with, wait_until


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
