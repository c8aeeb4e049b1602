"""`strategy="auto"` on real processes, over a link of known speed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.errors import ConfigError
from tests.support import pool
from tests.support.slowlink import Paced, SlowLink

LAYER_BYTES = 64 * 64 * 4
SETTLED_BY = 5 + 10 + 24


def tuned(model: nn.Module, link: tuple[float, float] | None, auto: gw.Auto, **options: Any) -> Any:
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-3), model, strategy=auto, **options)
    if link is not None:
        optimizer._engine.set_reducer(SlowLink(*link))
    return optimizer


def train(model: nn.Module, optimizer: Any, steps: int, rank: int, micro: int = 1) -> None:
    data = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        for _ in range(micro):
            model(torch.randn(2, 64, generator=data)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def lines(optimizer: Any) -> list[str]:
    return list(optimizer._engine.tuner.lines)


def plan(optimizer: Any) -> list[int]:
    return [segment.last for segment in optimizer.segments]


def same_on_all(model: nn.Module) -> bool:
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    everyone = gw.allgather(mine.unsqueeze(0))
    return bool((everyone == everyone[0]).all())


def improves(rank: int, world_size: int, start: Any, link: tuple[float, float]) -> tuple[list[int], list[str], bool]:
    torch.manual_seed(0)
    model = Paced()
    optimizer = tuned(model, link, gw.Auto(start=start, watch=False, verbose=False))
    train(model, optimizer, SETTLED_BY + 2, rank)
    return plan(optimizer), lines(optimizer), same_on_all(model)


def test_a_plan_that_hides_communication_is_found_in_ten_profiled_iterations_and_kept() -> None:
    # Six layers of 12 ms and 8 ms a message of one layer: all but the last message hide; one segment hides nothing.
    link = (0.002, 0.006 / LAYER_BYTES)
    results = pool.run(2, improves, "single", link)
    for found, said, same in results:
        assert found == results[0][0] and len(found) >= 3 and found[-1] == 5, said
        assert any(line.startswith("tries") for line in said) and said[-1].startswith("takes the new plan"), said
        assert same
    assert float(re.search(r"measured -([\d.]+) %", results[0][1][-1]).group(1)) > 10


def test_where_nothing_is_to_gain_the_plan_stays() -> None:
    # Latency alone: a second message hides nothing that the first one carried.
    for found, said, same in pool.run(2, improves, "single", (0.060, 0.0)):
        assert found == [5] and same
        assert said[-1].startswith("keeps its plan"), said


def link_changes(rank: int, world_size: int) -> tuple[list[list[int]], list[str]]:
    """The link becomes ten times slower in latency: fewer segments are better then."""
    model = Paced()
    optimizer = tuned(model, (0.001, 0.006 / LAYER_BYTES), gw.Auto(start="per_gradient", verbose=False))
    train(model, optimizer, SETTLED_BY + 25, rank)
    plans = [plan(optimizer)]
    optimizer._engine.reducer.alpha_s = 0.024
    for _ in range(2):
        train(model, optimizer, 30, rank)
        plans.append(plan(optimizer))
    return plans, lines(optimizer)


def test_a_link_that_changes_in_mid_run_is_noticed_and_planned_for_within_thirty_iterations() -> None:
    results = pool.run(2, link_changes)
    for plans, said in results:
        assert plans == results[0][0]
        before, after, later = plans
        assert len(after) < len(before), said
        assert any("has changed" in line for line in said)
        assert later == after, said  # and it does not swing


def odd(rank: int, world_size: int, kind: str) -> tuple[list[int], list[str], bool]:
    torch.manual_seed(0)
    options: dict[str, Any] = {}
    model: nn.Module = Paced(seconds=0.012 if kind != "slow rank" or rank else 0.020)
    micro, group = 1, None
    if kind == "accumulation":
        options["accumulate"] = micro = 2
    if kind == "group":
        gw.new_group("some", [0, 1])
        options["group"] = group = "some"
    if kind == "unused":
        model.spare = nn.Linear(64, 64)
    if kind == "half unused":
        model.layers[2].weight.requires_grad_(True)
        model.register_forward_pre_hook(lambda module, args: (args[0] + (module.spare.weight.sum() * 0 if rank else 0),))
        model.spare = nn.Linear(64, 64)
    optimizer = tuned(model, (0.002, 0.006 / LAYER_BYTES), gw.Auto(start="single", watch=False, verbose=False), **options)
    train(model, optimizer, SETTLED_BY + 2, rank, micro)
    assert group is None or optimizer._engine.group.name == group
    return plan(optimizer), lines(optimizer), same_on_all(model)


@pytest.mark.parametrize("kind", ["accumulation", "group", "unused", "half unused", "slow rank"])
def test_it_works_with(kind: str) -> None:
    results = pool.run(2, odd, kind)
    for found, said, same in results:
        assert same and found == results[0][0] and len(found) > 1, said
        assert said[-1].startswith("takes the new plan"), said


def files(rank: int, world_size: int, path: str, width: int, steps: int) -> tuple[list[int], list[str]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    optimizer = tuned(model, None, gw.Auto(start=[1, 3], plan_file=path, watch=False, verbose=False))
    for _ in range(steps):
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()
    return plan(optimizer), lines(optimizer)


def test_a_plan_file_is_written_and_resumed_from_or_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    found, said = pool.run(2, files, str(path), 64, SETTLED_BY + 2)[0]
    assert said[-1] == f"wrote {path}" and gw.load_plan(path).topology == "2 ranks, 2 a host"
    again, said = pool.run(2, files, str(path), 64, 3)[0]
    assert again == found and said == [f"resumes from {path}: {len(found)} segment{'s' * (len(found) != 1)}"]
    _, said = pool.run(2, files, str(path), 32, 3)[1]
    assert said[0].startswith("tunes from the start") and "float32 [64, 64] in the plan and float32 [32, 32]" in said[0]
    _, said = pool.run(3, files, str(path), 64, 3)[0]
    assert "it was made for 2 ranks, and the group has 3" in said[0]
    path.write_text("{")
    _, said = pool.run(2, files, str(path), 64, 3)[0]
    assert "is not JSON" in said[0]


def test_it_needs_the_recorder() -> None:
    def build() -> None:
        model = nn.Linear(2, 2)
        gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, strategy="auto", record=False)

    gw.init()
    with pytest.raises(ConfigError, match="record=False"):
        build()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_segments": 0}, "max_segments=0"),
        ({"max_bytes": 1.5}, "max_bytes=1.5"),
        ({"min_gain": 2}, "min_gain=2"),
        ({"plan_file": 3}, "plan_file=3"),
        ({"start": "auto"}, "start='auto'"),
        ({"watch": 1}, "watch=1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        gw.Auto(**options)
