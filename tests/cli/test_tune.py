"""`gradweave tune`: an unmodified script is tuned while it trains; the plan lands in a file."""

from __future__ import annotations

import json
from pathlib import Path

import gradweave as gw
from tests.cli.command import gradweave

SCRIPT = """
import sys
import torch
import gradweave as gw

gw.init()
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model{extra})
for step in range({steps}):
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if gw.rank() == 0:
    print("trained", *sys.argv[1:])
gw.shutdown()
"""


def script(folder: Path, steps: int = 60, extra: str = "") -> Path:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(steps=steps, extra=extra))
    return path


def test_a_script_is_tuned_and_its_plan_can_be_trained_with(tmp_path):
    plan = tmp_path / "plans" / "plan.json"
    result = gradweave("tune", "-n", "2", "-o", plan, "--json", script(tmp_path), "--mine", timeout=100)
    assert result.returncode == 0, result.stderr
    head, _, body = result.stdout.partition("{")
    assert "trained --mine" in head
    data = json.loads("{" + body)
    assert data == gw.load_plan(plan).to_dict() and data["topology"] == "2 ranks, 2 a host"
    lines = [line for line in result.stderr.splitlines() if line.startswith("gradweave: optimizer0: ")]
    assert any("cost of a message" in line for line in lines) and any("wrote" in line for line in lines), result.stderr
    again = gradweave("run", "-n", "2", script(tmp_path, 3, f", strategy={str(plan)!r}"))
    assert again.returncode == 0, again.stderr


def test_it_may_stop_when_the_plan_is_settled(tmp_path):
    result = gradweave("tune", "-n", "2", "-o", tmp_path / "p.json", "--stop", script(tmp_path, 100_000), timeout=100)
    assert result.returncode == 0, result.stderr
    assert "written:" in result.stdout and "segment 0:" in result.stdout and "trained" not in result.stdout


def test_too_few_steps_or_a_strategy_of_its_own_leave_no_plan_and_are_told(tmp_path):
    for path in (script(tmp_path, 4), script(tmp_path, 60, ', strategy="single"')):
        result = gradweave("tune", "-n", "2", "-o", tmp_path / "none.json", path)
        assert result.returncode == 1 and "ended without a plan" in result.stderr, result.stderr
        assert not (tmp_path / "none.json").exists()


def test_a_failing_script_and_a_missing_one(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("raise SystemExit(3)")
    assert gradweave("tune", "-n", "2", bad).returncode == 1
    missing = gradweave("tune", tmp_path / "no.py")
    assert missing.returncode == 2 and "there is no file" in missing.stderr
