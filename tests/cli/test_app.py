"""The command line as a whole: help, versions, exit codes, errors. Needs no torch."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from tests.cli.command import COMMAND, WITHOUT_TORCH, environment, gradweave

COMMANDS = ("demo", "run", "report", "doctor")


def test_version_is_that_of_the_installed_package():
    assert gradweave("--version").stdout.strip() == f"gradweave {importlib.metadata.version('gradweave')}"


@pytest.mark.parametrize("arguments", [(), *((command,) for command in COMMANDS)], ids=lambda a: " ".join(a) or "gradweave")
def test_help_has_examples_and_fits_80_columns(arguments):
    result = gradweave(*arguments, "--help")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    after = lines[[line.strip() for line in lines].index("Examples") :]
    assert any(line.strip().startswith(f"gradweave {' '.join(arguments)}".strip()) for line in after)


@pytest.mark.parametrize("arguments", [(), *((command,) for command in COMMANDS)], ids=lambda a: " ".join(a) or "gradweave")
def test_flags_are_shown_without_a_value(arguments):
    text = gradweave(*arguments, "--help").stdout
    assert "--help" in text and "bool" not in text.lower()


def test_help_of_the_group_lists_every_command():
    text = gradweave("--help").stdout
    assert all(f" {command} " in text for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments", [("nosuch",), ("run",), ("run", "--nosuch", "x.py"), ("report",), ("demo", "--nproc", "0")]
)
def test_wrong_usage_ends_with_2_and_says_so_on_stderr(arguments):
    result = gradweave(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


def test_an_error_of_the_user_is_one_message_with_rule_and_fix(tmp_path):
    result = gradweave("report", tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert "error:" in result.stderr and "rule:" in result.stderr and "fix:" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    result = gradweave("--debug", "report", tmp_path)
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "TraceError" in result.stderr


def test_a_reader_that_leaves_early_causes_no_message():
    process = subprocess.Popen(
        [*COMMAND, "doctor", "--quick", "--json"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    errors = process.stderr.read().decode()
    assert process.wait(50) == 1
    assert "error" not in errors.lower()


def test_the_command_line_imports_without_torch():
    code = f"{WITHOUT_TORCH}\nimport gradweave.cli\nassert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=50)
    assert result.returncode == 0, result.stderr
