"""A program that ends while the backend's threads still report the last reductions ends cleanly.

A thread that asks for the interpreter when it is being torn down is ended by it, and the process aborts with "terminate called
without an active exception". The events here are slow to return from `set`, so that a thread is certainly still busy at exit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
import threading, time
import torch
import gradweave as gw
from gradweave.sync import flight

class SlowEvent(threading.Event):
    def set(self):
        super().set()
        for _ in range(300):
            time.sleep(0.002)

flight.threading.Event = SlowEvent
gw.init()
model = torch.nn.Linear(4, 1)
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="per_gradient")
for _ in range(2):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""
ENDINGS = {
    "falls off the end": ("", 0),
    "shuts down": ("gw.shutdown()", 0),
    "an exception": ("raise ValueError('mine')", 1),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_process_ends_with_its_own_exit_code(ending: str) -> None:
    line, code = ENDINGS[ending]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(SCRIPT) + line], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, "terminate called" in done.stderr) == (code, False), done.stderr


IN_FLIGHT = """
import sys
import torch
import gradweave as gw

gw.init(timeout=8)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(12)])
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="per_gradient")
for step in range(4):
    model(torch.randn(4, 64)).sum().backward()
    if step == 3 and gw.rank() == 1:
        raise ValueError("mine")
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_exception_while_reductions_are_under_way_keeps_its_exit_code(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(IN_FLIGHT)
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert "ValueError: mine" in done.stderr
    assert "terminate called" not in done.stderr and "exitcode  : -6" not in done.stderr, done.stderr[-2000:]
