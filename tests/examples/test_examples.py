"""Every example runs under torchrun on two processes, and is short."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# What rank 0 prints once at the end, when all the example's own assertions hold.
CLOSING = {
    "accumulate": "2 ranks x 3 micro-batches equal one process on the full batch",
    "ascend_import": "segment index list: [0, 5] [6, 7] [8, 9]",
    "clip_and_amp": "2 ranks agree on the norm",
    "collectives": "collectives agree on 2 ranks",
    "ddp_dropin": "2 ranks agree",
    "digits_conv": "epoch 4: ",
    "minimal_optimizer": "2 ranks agree",
    "plan_file": "the plan file gives [(0, 1), (2, 5), (6, 7)] from the first step",
    "split_by_idx": "by size ",
}
LIMIT_LINES = 40


def torchrun(path: Path, processes: int) -> subprocess.CompletedProcess[str]:
    """Run a script as the example's head says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50)


def test_every_example_is_listed_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(CLOSING)


@pytest.mark.parametrize("name", sorted(CLOSING))
def test_example_runs_on_two_processes(name):
    result = torchrun(EXAMPLES / f"{name}.py", 2)
    assert result.returncode == 0, result.stderr[-3000:]
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith(CLOSING[name]), result.stdout
    if name == "minimal_optimizer":
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]
        assert len(losses) == 3 and losses == sorted(losses, reverse=True), "the loss falls"
    if name == "digits_conv":
        assert float(last.split("validation accuracy ")[1].split(" %")[0]) > 90


@pytest.mark.parametrize("name", sorted(CLOSING))
def test_example_is_short_and_says_how_to_run_it(name):
    text = (EXAMPLES / f"{name}.py").read_text()
    assert len(text.splitlines()) <= LIMIT_LINES
    assert f"torchrun --nproc-per-node 2 examples/{name}.py" in text


def test_the_plan_example_saves_with_the_optimizer():
    assert "optimizer.save_plan(path)" in (EXAMPLES / "plan_file.py").read_text()
