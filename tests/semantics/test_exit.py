"""A program that ends while the backend's threads still report the last reductions ends cleanly.

A thread that asks for the interpreter when it is being torn down is ended by it, and the process aborts with "terminate called
without an active exception". The events here are slow to return from `set`, so that a thread is certainly still busy at exit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support import pool

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


THREADS = """
import atexit, glob
import torch
import torch.distributed as dist

def names():
    return [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]

atexit.register(lambda: print("left", sum("gloo" in name for name in names())))  # runs last: registered first
import gradweave as gw

gw.init()
model = torch.nn.Linear(4, 1)
{use}
assert any("gloo" in name for name in names())
{end}
"""
USES = {
    "collectives": """
kept = gw.allreduce(torch.ones(3), async_op=True)
kept.wait()
gw.new_group("solo", [0])
gw.broadcast(model)
""",
    "optimizer": """
wrapped = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    wrapped.step()
""",
    "drop-in": """
ddp = gw.DistributedDataParallel(model)
plain = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    ddp(torch.ones(1, 4)).sum().backward()
    plain.step()
""",
}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
@pytest.mark.parametrize(
    ("use", "end"),
    [
        ("collectives", ""),
        ("optimizer", ""),
        ("optimizer", "dist.destroy_process_group()"),
        ("drop-in", "gw.shutdown()"),
    ],
)
def test_no_thread_of_the_backend_outlives_the_world(use: str, end: str) -> None:
    script = THREADS.format(use=USES[use], end=end)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout.strip()) == (0, "left 0"), done.stderr


def test_what_was_built_on_a_world_says_that_it_was_left() -> None:
    script = """
import torch
import gradweave as gw

gw.init()
group = gw.new_group("solo", [0])
model = torch.nn.Linear(4, 1)
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
gw.shutdown()
for act in (optimizer.step, lambda: gw.allreduce(torch.ones(1), group=group)):
    try:
        act()
    except gw.GradweaveError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert "the world was left" in done.stdout and "group 'solo' was destroyed" in done.stdout, done.stdout


ADOPTED = """
import atexit, glob
import torch
import torch.distributed as dist

def names():
    return [open(path).read().strip() for path in glob.glob("/proc/self/task/*/comm")]

atexit.register(lambda: print("left", sum("gloo" in name for name in names())))
import gradweave as gw
import torch.distributed.nn.functional  # keeps the world of the moment of its import, whoever made it

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(4, 1)
wrapped = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    wrapped.step()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_no_thread_of_a_world_that_the_user_made_and_ended_is_left() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", ADOPTED], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout.strip()) == (0, "left 0"), done.stderr


BLOCKED = """
import os, signal, threading, time
import torch
import gradweave as gw

gw.init()
model = torch.nn.Linear(4, 1)
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
model(torch.ones(1, 4)).sum().backward()
optimizer.step()
if gw.rank() == 1:
    time.sleep(60)
threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
gw.barrier()
"""


def test_a_process_blocked_in_a_collective_ends_at_a_sigterm() -> None:
    port = str(pool.free_port())
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    command = [sys.executable, "-W", "ignore", "-c", BLOCKED]
    ranks = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}) for rank in (0, 1)]
    try:
        assert ranks[0].wait(timeout=40) == -signal.SIGTERM
    finally:
        for process in ranks:
            process.kill()
            process.wait()
