"""Rule 14: when a peer dies, every survivor says which collective, group, segment and step, and who did not arrive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

import gradweave as gw
from tests.semantics.helpers import batch, loss_of, mlp, wrapped
from tests.support import pool

TIMEOUT_S = 20.0


def dying(rank: int, world_size: int, victim: int, bad_step: int) -> tuple[str, float]:
    """The victim kills itself in `bad_step`; the error of the others and the seconds it took."""
    model = mlp()
    optimizer = wrapped(model, timeout=TIMEOUT_S, strategy=[2, 5], label="trunk")
    started = time.monotonic()
    try:
        for step in range(bad_step + 1):
            if rank == victim and step == bad_step:
                os.kill(os.getpid(), signal.SIGKILL)
            started = time.monotonic()
            loss_of(model, batch(seed=step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    except gw.CollectiveError as error:
        return str(error), time.monotonic() - started
    return "no error", 0.0


def test_every_survivor_names_collective_group_segment_step_and_the_dead_rank() -> None:
    outcomes = pool.fresh(3, dying, 2, 3)
    assert outcomes[2].exit_code == -signal.SIGKILL
    for outcome in outcomes[:2]:
        text, seconds = outcome.value
        assert "all_reduce of segment" in text and "gradients" in text, text
        assert f"[rank {outcome.rank}, group world, step 3]" in text, text
        assert "did not arrive: 2" in text, text
        assert seconds < TIMEOUT_S + 5


def test_the_loss_of_rank_0_and_its_store_has_a_message_of_its_own() -> None:
    outcomes = pool.fresh(2, dying, 0, 2)
    assert outcomes[0].exit_code == -signal.SIGKILL
    text, seconds = outcomes[1].value
    assert "the rendezvous store does not answer" in text and "rank 0" in text, text
    assert "step 2" in text and "all_reduce of segment" in text, text
    assert seconds < TIMEOUT_S + 5


def terminated(rank: int, world_size: int, log: str) -> str:
    """Rank 1 does not come to step 2; when rank 0 has waited for a while, it gets a SIGTERM."""
    pids: list[int | None] = [None] * world_size
    dist.all_gather_object(pids, os.getpid())
    model = mlp()
    optimizer = wrapped(model, strategy=[2, 5], label="trunk")
    if rank == 0:
        with open(log, "w") as file:
            os.dup2(file.fileno(), 2)
    for step in range(3):
        if rank == 1 and step == 2:
            time.sleep(3)
            os.kill(pids[0] or 0, signal.SIGTERM)
            time.sleep(1)
            return "sent"
        loss_of(model, batch(seed=step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return "went on"


def test_sigterm_prints_the_pending_collective_and_still_ends_the_process(tmp_path: Path) -> None:
    log = tmp_path / "stderr"
    first, second = pool.fresh(2, terminated, str(log))
    assert second.value == "sent", second
    assert first.exit_code == -signal.SIGTERM
    assert "terminated while rank 0 waited for all_reduce of segment 0 (gradients 0..2" in log.read_text()
    assert "group world, trunk" in log.read_text() and "step 2)" in log.read_text()


SCRIPT = """
import os, signal, torch, gradweave as gw
gw.init(timeout=20)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, label="trunk")
for step in range(100):
    if step == 3 and gw.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def processes_of(script: Path) -> list[str]:
    """Command lines of living processes that run the script."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(script) in command:
            found.append(command)
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for orphans in /proc")
def test_under_torchrun_the_survivor_says_what_it_waited_for_and_nobody_is_left(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, env=environment)
    text = done.stdout + done.stderr
    assert done.returncode == 1
    assert "all_reduce of segment 0" in text and "step 3" in text and "trunk" in text, text
    assert "rank 0" in text
    assert processes_of(script) == []
