"""The emulated cluster: hosts, limited links, removal; skipped where the machine does not allow it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from benchmarks.lab.cluster import Cluster, LabError, cluster, set_rate
from benchmarks.lab.models import MODELS, total_bytes

TIMES = """
import json, sys, time
import torch
import torch.distributed as dist
import gradweave as gw

gw.init(timeout=60)
buffer = torch.zeros(1 << 20)
dist.all_reduce(buffer)
begin = time.perf_counter()
dist.all_reduce(buffer)
print(json.dumps([gw.rank(), gw.size(), time.perf_counter() - begin]))
gw.shutdown()
"""


def namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout


@pytest.fixture
def two() -> Iterator[Cluster]:
    """Two hosts at 200 Mbit/s."""
    try:
        context = cluster(2, "200mbit")
        made = context.__enter__()
    except LabError as error:
        pytest.skip(f"no emulated cluster here: {error}")
    try:
        yield made
    finally:
        context.__exit__(None, None, None)
        assert made.prefix not in namespaces()


def test_a_link_is_as_fast_as_it_is_told_to_be_also_when_it_changes(two: Cluster) -> None:
    command = [sys.executable, "-W", "ignore", "-c", TIMES]
    rank, size, slow = json.loads(two.run(command, timeout_s=50))
    assert (rank, size) == (0, 2)
    # On two ranks each link carries the 4 MiB once: 168 ms at 200 Mbit/s.
    assert 0.15 < slow < 0.6
    for index in range(2):
        set_rate(two, index, "1gbit")
    assert json.loads(two.run(command, timeout_s=50))[2] < slow / 2


def test_a_rank_that_fails_ends_the_run(two: Cluster) -> None:
    with pytest.raises(LabError, match="exit codes of the ranks"):
        two.run([sys.executable, "-c", "import os, sys; sys.exit(int(os.environ['RANK']))"], timeout_s=30)


def test_the_models_have_the_published_numbers_of_parameters() -> None:
    found = {name: (total_bytes(make()) // 4, sum(len(layer.shapes) for layer in make())) for name, make in MODELS.items()}
    assert found == {
        "resnet50": (25_557_032, 161),
        "vgg16": (138_357_544, 32),
        "bert_base": (109_482_240, 199),
        "gpt2_small": (124_439_808, 148),
    }
