"""`gradweave run`: arguments, exit codes, environment, signals, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from gradweave.cli.run import _trace_folder
from gradweave.trace.files import load_dir
from tests.cli.command import COMMAND, environment, gradweave, gradweave_without_torch, processes_with, wait_until

ECHO = """
import json, os, sys
keys = ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "GRADWEAVE_TRACE_DIR")
line = json.dumps({"args": sys.argv[1:], **{key: os.environ.get(key) for key in keys}})
os.write(1, (line + "\\n").encode())
sys.exit(7 if "--fail" in sys.argv and os.environ["RANK"] == "1" else 0)
"""
SLEEP = """
import os, pathlib, signal, sys, time
if "--stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1], os.environ["RANK"]).touch()
time.sleep(120)
"""


@pytest.fixture
def echo(tmp_path):
    path = tmp_path / "echo.py"
    path.write_text(ECHO)
    return path


def rows(result):
    return sorted((json.loads(line) for line in result.stdout.splitlines()), key=lambda row: row["RANK"])


def test_arguments_after_the_script_pass_through_untouched(echo):
    arguments = ["--nproc", "9", "-m", "--", "--help", "--log-dir=x", ""]
    result = gradweave("run", "--nproc", "2", echo, *arguments, OMP_NUM_THREADS="3")
    assert result.returncode == 0, result.stderr
    assert [row["args"] for row in rows(result)] == [arguments, arguments]
    assert [(row["RANK"], row["WORLD_SIZE"]) for row in rows(result)] == [("0", "2"), ("1", "2")]
    assert {row["OMP_NUM_THREADS"] for row in rows(result)} == {"3"}


def test_cores_are_shared_out_unless_the_user_says_otherwise(echo):
    given = {key: value for key, value in environment().items() if key != "OMP_NUM_THREADS"}
    result = subprocess.run([*COMMAND, "run", "-n", "1", str(echo)], env=given, capture_output=True, text=True, timeout=50)
    assert rows(result)[0]["OMP_NUM_THREADS"] == str(os.cpu_count())


def test_a_failed_script_ends_with_1_and_names_the_rank(echo):
    result = gradweave("run", "-n", "2", echo, "--fail")
    assert result.returncode == 1
    assert "rank 1 failed first (exit code 7)" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_script_that_does_not_exist_is_wrong_usage(tmp_path):
    result = gradweave("run", tmp_path / "absent.py")
    assert result.returncode == 2
    assert "there is no file" in result.stderr


def test_trace_makes_the_folder_and_refuses_traces_of_another_run(echo, tmp_path):
    folder = tmp_path / "traces"
    result = gradweave("run", "-n", "1", "--trace", folder, echo)
    assert rows(result)[0]["GRADWEAVE_TRACE_DIR"] == str(folder)
    assert "the script wraps nothing" in result.stderr
    old = folder / "gradweave-rank00000-x.json"
    old.touch()
    refused = gradweave("run", "-n", "1", "--trace", folder, echo)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "already holds 1 traces" in refused.stderr and old.exists()
    assert _trace_folder(folder, overwrite=True) == folder
    assert not old.exists()


def test_without_torch_the_message_says_what_to_install(echo):
    result = gradweave_without_torch("run", echo)
    assert result.returncode == 1
    assert "needs PyTorch" in result.stderr and "pip install" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("sent", "code", "flags"),
    [(signal.SIGINT, 130, []), (signal.SIGTERM, 143, ["--stubborn"])],
    ids=["Ctrl-C", "SIGTERM with workers that ignore it"],
)
def test_an_interrupt_leaves_no_process_behind(tmp_path, sent, code, flags):
    script = tmp_path / "sleep.py"
    script.write_text(SLEEP)
    token = f"GRADWEAVE_TEST_TOKEN={uuid.uuid4().hex}"
    name, value = token.split("=")
    command = [*COMMAND, "run", "-n", "2", str(script), str(tmp_path), *flags]
    process = subprocess.Popen(command, env=environment(**{name: value}), stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists())
        assert len(processes_with(token)) == 3
        process.send_signal(sent)
        _, errors = process.communicate(timeout=25)
        assert process.returncode == code
        assert f"interrupted by {sent.name}" in errors
        assert wait_until(lambda: not processes_with(token), timeout=5)
    finally:
        for pid in [process.pid, *processes_with(token)]:
            if process.poll() is None or pid != process.pid:
                os.kill(pid, signal.SIGKILL)
        process.wait()


def test_traces_of_a_training_script_can_be_reported(tmp_path):
    example = Path(__file__).resolve().parents[2] / "examples" / "minimal_optimizer.py"
    result = gradweave("run", "-n", "2", "--trace", tmp_path, example)
    assert result.returncode == 0, result.stderr
    assert "gradweave report" in result.stderr
    traces = load_dir(tmp_path)
    assert [trace.rank for trace in traces] == [0, 1]
    steps = int(re.search(r"for step in range\(1, (\d+)\)", example.read_text()).group(1)) - 1
    assert [len(trace.iterations) for trace in traces] == [steps] * 2
