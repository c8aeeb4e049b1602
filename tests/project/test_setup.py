"""`scripts/setup.sh` says what is missing, and does nothing the second time. Runs against stand-ins for Python and pip."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A stand-in for python3: new enough; `-m venv` installs itself as .venv/bin/python unless told to fail.
PYTHON = """#!/bin/sh
case "$*" in
    *"version_info < (3, 10)"*|*"version_info < (3, 11)"*) exit {version} ;;
    "-V") echo "Python 3.11.7" ;;
    "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; exit {venv} ;;
    *"import ensurepip"*) exit {ensurepip} ;;
    "-m pip --version") exit 0 ;;
    "-m pip install"*) echo "$*" >> pip-calls; echo "{pip_says}"; exit {pip} ;;
    *) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A folder, with a space in its name, that holds what the script reads."""
    folder = tmp_path / "a checkout"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", folder / "scripts")
    for name in ("pyproject.toml", "constraints.txt", "Makefile"):
        shutil.copy(ROOT / name, folder)
    return folder


def set_up(folder: Path, **answers: int | str) -> subprocess.CompletedProcess[str]:
    """Run the script with a Python that answers like this."""
    python = folder.parent / "python-stand-in"
    python.write_text(PYTHON.format(**{"version": 0, "venv": 0, "ensurepip": 0, "pip": 0, "pip_says": "ok", **answers}))
    python.chmod(0o755)
    return run(folder, str(python))


def run(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": python}
    return subprocess.run(
        ["sh", str(folder / "scripts" / "setup.sh")], cwd="/", env=environment, capture_output=True, text=True, timeout=30
    )


def test_no_python_is_named(checkout):
    result = run(checkout, "/nowhere/python3")
    assert result.returncode == 1
    assert "no Python 3.10 or newer was found" in result.stderr and "/nowhere/python3" in result.stderr


def test_an_old_python_is_refused(checkout):
    result = set_up(checkout, version=1)
    assert result.returncode == 1
    assert "no Python 3.10 or newer was found" in result.stderr


def test_a_missing_venv_module_names_the_package_to_install_and_leaves_nothing(checkout):
    result = set_up(checkout, venv=1, ensurepip=1)
    assert result.returncode == 1
    assert "ensurepip module is missing" in result.stderr and "apt-get install python3-venv" in result.stderr
    assert not (checkout / ".venv").exists()


def test_no_network_is_named(checkout):
    says = "WARNING: Retrying: NewConnectionError: Temporary failure in name resolution"
    result = set_up(checkout, pip=1, pip_says=says)
    assert result.returncode == 1
    assert "the package index cannot be reached" in result.stderr and "PIP_INDEX_URL" in result.stderr


def test_another_failure_of_pip_shows_its_last_words(checkout):
    result = set_up(checkout, pip=1, pip_says="ERROR: No matching distribution found for torch==2.13.0")
    assert result.returncode == 1
    assert "No matching distribution found for torch==2.13.0" in result.stderr
    assert "build/setup.log" in result.stderr


def test_it_installs_once_with_torch_pinned_and_again_only_when_something_changed(checkout):
    assert set_up(checkout).returncode == 0
    calls = (checkout / "pip-calls").read_text()
    assert "torch==2.13.0" in calls and "-c constraints.txt" in calls
    again = set_up(checkout)
    assert (again.returncode, again.stdout) == (0, "")
    assert (checkout / "pip-calls").read_text() == calls
    with (checkout / "constraints.txt").open("a") as constraints:
        constraints.write("# changed\n")
    assert set_up(checkout).returncode == 0
    assert len((checkout / "pip-calls").read_text()) > len(calls)


def test_make_reaches_the_script_from_any_folder(checkout):
    set_up(checkout)
    result = subprocess.run(["make", "-C", str(checkout), "setup"], cwd="/", capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr


def test_ci_entry_is_executable_and_parses():
    entry = ROOT / ".ci" / "run"
    assert os.access(entry, os.X_OK)
    assert subprocess.run(["bash", "-n", str(entry)]).returncode == 0
