"""The plan in the words of other stacks; DDP is really run with it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gradweave.model import GradientInfo
from gradweave.tune import AffineCost, make_problem, solve
from gradweave.tune.export import MIB, exports
from gradweave.tune.stacks import closes_at, closes_before, cycles, from_the_end
from tests.support import pool


def instance(seed: int, count: int = 60) -> tuple[Any, tuple[int, ...], list[GradientInfo]]:
    rng = random.Random(seed)
    infos = [
        GradientInfo(f"p{i}", (numel := rng.choice([64, 512, 2_359_296, 589_824]),), "float32", 4 * numel) for i in range(count)
    ]
    ready = sorted(rng.random() for _ in range(count))
    sizes = [info.size_bytes for info in infos]
    cost = AffineCost(0.002, (0.3 + seed % 3) / sum(sizes))
    return make_problem(ready, sizes, cost), solve(ready, sizes, cost).plan, infos


@pytest.mark.parametrize("seed", range(12))
def test_every_stack_is_predicted_under_its_own_rule_and_none_beats_the_exact_plan(seed: int) -> None:
    problem, plan, infos = instance(seed)
    best = solve(problem.ready_s, problem.sizes_bytes, problem.cost).end_s
    found = {export.stack: export for export in exports(problem, plan, infos)}
    assert len(found) == 10
    for export in found.values():
        assert export.end_s >= best * (1 - 1e-9), export.stack
        assert export.plan[-1] == problem.count - 1
        json.dumps(export.to_dict(), allow_nan=False)
    for exact in ("DDP bucket_cap_mb_list", "Horovod groups", "MindSpore"):
        assert found[exact].plan == plan
    assert len(found["HCCL by index"].plan) <= 8
    assert found["HCCL by size"].plan == found["HCCL by index"].plan
    assert sum(found["HCCL by size"].settings["set_split_strategy_by_size"]) == pytest.approx(100, abs=1e-4)


def test_rules_on_small_examples() -> None:
    sizes = [4, 4, 8, 1, 1]
    assert closes_at([8, 9], sizes).plan == (1, 3, 4)
    assert closes_before(8, sizes).plan == (1, 2, 4)
    assert closes_before(8, sizes).waits_for == (2, 3, 4)
    assert closes_before(3, sizes).plan == (0, 1, 2, 4)
    assert from_the_end(8, 2, sizes).plan == (1, 2, 4)
    assert cycles(8, sizes, [0.0, 0.0, 1.0, 1.0, 9.0], lambda size: 2.0).plan == (1, 2, 3, 4)


def buckets_of_ddp(rank: int, world_size: int, caps: list[float]) -> list[int]:
    """Last indices of DDP's buckets, as rebuilt after its first step."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in zip((16, 96, 32, 200, 8), (96, 32, 200, 8, 64), strict=True)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb_list=caps)
    for _ in range(3):
        model(torch.ones(2, 16)).sum().backward()
        model.zero_grad()
    total, ends = 0, []
    for bucket in model._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"].split(", "):
        total += len(bucket.split())
        ends.append(total - 1)
    return ends


@pytest.mark.parametrize("plan", [[0, 3, 9], [1, 9], [2, 4, 6, 9], [9]])
def test_ddp_run_with_the_exported_caps_has_the_buckets_of_the_plan(plan: list[int]) -> None:
    shapes = [(b, a) for a, b in zip((16, 96, 32, 200, 8), (96, 32, 200, 8, 64), strict=True)]
    # The order in which DDP sees them: last layer first, the bias before the weight.
    numels = [numel for out, inner in reversed(shapes) for numel in (out, out * inner)]
    infos = [GradientInfo(f"p{i}", (numel,), "float32", 4 * numel) for i, numel in enumerate(numels)]
    problem = make_problem([0.1 * k for k in range(10)], [info.size_bytes for info in infos], AffineCost(0.01, 1e-6))
    export = exports(problem, plan, infos)[0]
    assert export.plan == tuple(plan)
    caps = export.settings["bucket_cap_mb_list"]
    assert sum(caps) * MIB == pytest.approx(sum(problem.sizes_bytes))
    assert pool.run(2, buckets_of_ddp, caps) == [plan, plan]
