"""A program that ends while the backend's threads still report the last reductions ends cleanly.

A thread that asks for the interpreter when it is being torn down is ended by it, and the process aborts with "terminate called
without an active exception". The events here are slow to return from `set`, so that a thread is certainly still busy at exit.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

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
