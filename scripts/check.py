"""The one check command: format, lint, sizes, types, tests, doctests, and the tests against the built wheel.

Every stage runs even when an earlier one failed; each prints its seconds; the last line counts passed and failed tests, where a
failed stage that is no test run (lint, types) counts as one failure.

    python scripts/check.py            everything that a commit must pass
    python scripts/check.py --verify   the same with the long matrices
    python scripts/check.py --lint     format, lint, sizes and types only
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SUMMARY = BUILD / "check-summary.txt"
# These test packages need neither torch's processes nor the source tree, so they are what the wheel is tried with.
WHEEL_TESTS = (
    "tests/project/test_installed.py",
    "tests/model",
    "tests/split",
    "tests/cli/test_app.py",
    "tests/cli/test_report.py",
)


@dataclass
class Outcome:
    """What one stage gave."""

    name: str
    code: int
    seconds: float
    passed: int = 0
    failed: int = 0


def environment(**extra: str) -> dict[str, str]:
    """The environment of every stage: one thread per process, since the tests start many processes."""
    return {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **os.environ, **extra}


def call(*command: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command in the project's root, show its output as it comes, and return its exit code and output."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env or environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        print(line, end="", flush=True)
    return process.wait(), "".join(lines)


def python(*args: str) -> tuple[int, str]:
    """Run this interpreter with the arguments."""
    return call(sys.executable, *args)


def pytest(*args: str, interpreter: str = sys.executable, env: dict[str, str] | None = None) -> tuple[int, str]:
    """Run pytest; a run that collected nothing (code 5) is a failure like any other."""
    return call(interpreter, "-m", "pytest", "-q", "--color=no", *args, env=env)


def wheel() -> tuple[int, str]:
    """Build the wheel, install it alone into an environment of its own, and run the pure tests there."""
    home = BUILD / "wheel-venv"
    interpreter = str(home / "bin" / "python")
    for old in (BUILD / "wheel").glob("*.whl"):
        old.unlink()
    steps = [
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(BUILD / "wheel")],
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home)],
    ]
    for step in steps:
        done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            print(done.stdout[-2000:], done.stderr[-2000:])
            return done.returncode, ""
    lend_dependencies(home)
    archive = str(next((BUILD / "wheel").glob("*.whl")))
    code, output = python(
        "-m", "pip", "--python", interpreter, "install", "-q", "--no-deps", "--no-index", "--force-reinstall", archive
    )
    where = subprocess.run(
        [interpreter, "-c", "import gradweave.cli as c; print(c.__file__)"], cwd=BUILD, capture_output=True, text=True
    )
    if code or str(home) not in where.stdout:
        print(f"the wheel's package is not the one that is imported: {where.stdout}{where.stderr}")
        return 1, output
    return pytest("-o", "pythonpath=.", *existing(WHEEL_TESTS), interpreter=interpreter)


def lend_dependencies(home: Path) -> None:
    """Let an environment see this one's packages, but not its editable install.

    A path in a .pth file does not run that folder's own .pth files, so only the wheel can answer `import gradweave`.
    """
    site = next((home / "lib").glob("python*")) / "site-packages"
    (site / "dependencies.pth").write_text("\n".join(p for p in sys.path if p.endswith("site-packages")) + "\n")


def existing(paths: tuple[str, ...]) -> list[str]:
    """Those of the paths that exist."""
    return [path for path in paths if (ROOT / path).exists()]


def stages(lint_only: bool, verify: bool) -> list[tuple[str, Callable[[], tuple[int, str]]]]:
    """Name and action of every stage, in order."""
    lint: list[tuple[str, Callable[[], tuple[int, str]]]] = [
        ("format", lambda: python("-m", "ruff", "format", "--check", ".")),
        ("lint", lambda: python("-m", "ruff", "check", ".")),
        ("sizes", lambda: python("scripts/check_style.py")),
        ("types", lambda: python("-m", "mypy")),
    ]
    if lint_only:
        return lint
    chosen = ["-m", ""] if verify else []
    return [
        *lint,
        ("tests", lambda: pytest("--durations=15", *chosen)),
        ("doctests", lambda: pytest("--doctest-modules", "src/gradweave")),
        ("wheel", wheel),
    ]


def run_stage(name: str, action: Callable[[], tuple[int, str]]) -> Outcome:
    """Run one stage and count its tests from pytest's closing line."""
    print(f"\n=== {name}", flush=True)
    start = time.monotonic()
    code, output = action()
    outcome = Outcome(name, code, time.monotonic() - start)
    closing = re.findall(r"^(?:=+ )?(?:\d+ [a-z]+(?:, )?)+ in [\d.]+s.*$", output, flags=re.MULTILINE)
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|errors?)", closing[-1])} if closing else {}
    outcome.passed = counts.get("passed", 0)
    outcome.failed = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    if code and not outcome.failed:
        outcome.failed = 1
    print(f"--- {name}: {'ok' if code == 0 else f'FAILED (exit code {code})'} in {outcome.seconds:.1f} s", flush=True)
    return outcome


def main() -> int:
    """Run the stages and print the summary."""
    parser = argparse.ArgumentParser(description="Runs every check and test.")
    parser.add_argument("--lint", action="store_true", help="format, lint, sizes and types only")
    parser.add_argument("--verify", action="store_true", help="include the long matrices")
    options = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    outcomes = [run_stage(name, action) for name, action in stages(options.lint, options.verify)]
    print()
    for outcome in outcomes:
        print(f"{outcome.name:10s} {'ok' if outcome.code == 0 else 'FAILED':6s} {outcome.seconds:7.1f} s")
    summary = f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed"
    SUMMARY.write_text(summary + "\n")
    print(summary)
    return 1 if any(o.code for o in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
