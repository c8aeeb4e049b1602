"""The check command counts tests and failed stages, and its last line says how many."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check.py"


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("gradweave_check_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    ("code", "output", "passed", "failed"),
    [
        (0, "....\n404 passed in 62.42s (0:01:02)\n", 404, 0),
        (0, "12 passed, 3 skipped, 2 deselected, 1 warning in 3.10s\n", 12, 0),
        (1, "FAILED x - 9 passed in 1s\n1 failed, 2 passed, 2 errors in 95.55s\n", 2, 3),
        (2, "1 error in 0.50s\n", 0, 1),
        (5, "no tests ran in 0.01s\n", 0, 1),
        (1, "src/a.py:1: E501\nFound 2 errors.\n", 0, 1),
        (0, "All checks passed!\n", 0, 0),
    ],
)
def test_a_stage_counts_its_tests_or_itself(check, code, output, passed, failed):
    outcome = check.run_stage("stage", lambda: (code, output))
    assert (outcome.passed, outcome.failed) == (passed, failed)


def test_every_stage_runs_and_the_last_line_is_the_sum(check, monkeypatch, capsys, tmp_path):
    ran = []

    def stage(name, code, output):
        return name, lambda: (ran.append(name), (code, output))[1]

    stages = [
        stage("lint", 1, "Found 1 error."),
        stage("tests", 0, "5 passed in 1.0s"),
        stage("wheel", 1, "1 failed, 2 passed in 1.0s"),
    ]
    monkeypatch.setattr(check, "stages", lambda lint, verify: stages)
    monkeypatch.setattr(check, "SUMMARY", tmp_path / "summary.txt")
    monkeypatch.setattr("sys.argv", ["check.py"])
    assert check.main() == 1
    assert ran == ["lint", "tests", "wheel"]
    assert capsys.readouterr().out.strip().splitlines()[-1] == "7 passed, 2 failed"
    assert (tmp_path / "summary.txt").read_text() == "7 passed, 2 failed\n"


def test_the_wheel_is_tried_with_tests_that_exist(check):
    assert check.existing(check.WHEEL_TESTS)[0] == "tests/project/test_installed.py"
    assert len(check.existing(check.WHEEL_TESTS)) >= 4
