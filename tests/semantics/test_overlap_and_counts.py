"""What every rule stands on: overlap happens, collectives and bytes are exact, plans and groups are what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import gradweave as gw
from gradweave.sync import notices
from tests.semantics.helpers import alone, batch, collectives, error, loss_of, mlp, part, sgd, together, train, weights, wrapped
from tests.support import pool

# -- overlap ----------------------------------------------------------------------------------------------------------------


def timeline(rank: int, world_size: int, overlap: bool, as_model: bool) -> list[tuple[bool, bool, bool]]:
    """Per step: the first all-reduce started before the last gradient was ready, before backward ended, after it ended."""
    model = mlp(width=128, depth=8)
    optimizer = gw.DistributedOptimizer(
        sgd(model), model if as_model else model.named_parameters(), strategy="per_gradient", overlap=overlap
    )
    train(model, optimizer, [batch(width=128, seed=s) for s in range(4)])
    rows = []
    for iteration in optimizer.recorder.iterations[1:]:
        first = min(c.start_s for c in iteration.collectives)
        rows.append((first < max(iteration.ready_s), first < iteration.bp_end_s, first >= iteration.bp_end_s))
    return rows


@pytest.mark.parametrize("as_model", [True, False], ids=["model", "named parameters"])
def test_from_step_2_on_the_first_reduction_starts_before_backward_ends(as_model: bool) -> None:
    assert pool.run(2, timeline, True, as_model) == [[(True, True, False)] * 3] * 2


def test_without_overlap_nothing_starts_before_backward_has_ended() -> None:
    assert pool.run(2, timeline, False, True) == [[(False, False, True)] * 3] * 2


# -- counts -----------------------------------------------------------------------------------------------------------------


def counted(rank: int, world_size: int, strategy: Any, overlap: bool) -> tuple[list[list[tuple[str, int]]], int, int]:
    model = mlp()
    optimizer = wrapped(model, strategy=strategy, overlap=overlap)
    logs = []
    for step in range(3):
        with collectives() as log:
            loss_of(model, batch(seed=step)).backward()
            optimizer.step()
            optimizer.zero_grad()
        logs.append(log)
    return logs[1:], len(optimizer.segments), 4 * sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("strategy", ["single", "per_gradient", [0, 2, 5]], ids=str)
def test_a_step_is_one_all_reduce_per_segment_of_exactly_its_bytes_and_one_flag_per_gradient(
    strategy: Any, overlap: bool
) -> None:
    for logs, segments, gradient_bytes in pool.run(2, counted, strategy, overlap):
        for log in logs:
            assert [name for name, _ in log] == ["allreduce"] * segments
            assert sum(size for _, size in log) == gradient_bytes + 4 * (6 + notices.COUNT)


# -- segments and plan files ------------------------------------------------------------------------------------------------


class Backwards(nn.Module):
    """Registered in the order in which backward generates: the guess before step 1 is wrong."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.last, self.middle, self.first = (
            nn.Linear(4, 2, bias=False),
            nn.Linear(4, 4, bias=False),
            nn.Linear(8, 4, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


SIZES = {"first": 4 * 32, "middle": 4 * 16, "last": 4 * 8}


def segments_seen(rank: int, world_size: int, strategy: Any) -> tuple[list[int], list[list[int]]]:
    """Bytes of the segments before the first step, and bytes of the collectives of each step."""
    model = Backwards()
    optimizer = gw.DistributedOptimizer(sgd(model), model, strategy=strategy)
    before = [segment.size_bytes for segment in optimizer.segments]
    for seed in range(3):
        model(batch(seed=seed)[0]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [s.size_bytes for s in optimizer.segments] == [c.size_bytes for c in optimizer.recorder.iterations[-1].collectives]
    return before, [[c.size_bytes for c in iteration.collectives] for iteration in optimizer.recorder.iterations]


def test_an_index_list_means_reverse_registration_before_step_1_and_the_observed_order_after_it() -> None:
    for before, steps in pool.run(2, segments_seen, [0, 2]):
        assert before == [SIZES["first"], SIZES["middle"] + SIZES["last"]]
        assert steps == [[SIZES["last"], SIZES["middle"] + SIZES["first"]]] * 3


def plan_file(path: Path, segments: list[list[str]], group_size: int = 2) -> str:
    model = Backwards()
    infos = [
        gw.GradientInfo(name, tuple(p.shape), "float32", 4 * p.numel())
        for name in (f"{layer}.weight" for segment in segments for layer in segment)
        for p in [model.get_parameter(name)]
    ]
    lasts, total = [], 0
    for segment in segments:
        total += len(segment)
        lasts.append(total - 1)
    gw.save_plan(path, infos, lasts, group_size=group_size, backend="gloo")
    return str(path)


def test_a_plan_file_is_exact_from_the_first_step(tmp_path: Path) -> None:
    path = plan_file(tmp_path / "plan.json", [["last", "middle"], ["first"]])
    expected = [SIZES["last"] + SIZES["middle"], SIZES["first"]]
    assert pool.run(2, segments_seen, path) == [(expected, [expected] * 3)] * 2


def test_a_plan_file_keeps_its_own_order_when_it_differs_from_the_observed_one(tmp_path: Path) -> None:
    path = plan_file(tmp_path / "plan.json", [["middle"], ["last", "first"]])
    expected = [SIZES["middle"], SIZES["last"] + SIZES["first"]]
    assert pool.run(2, segments_seen, path) == [(expected, [expected] * 3)] * 2


# -- groups and worlds ------------------------------------------------------------------------------------------------------


def in_group(rank: int, world_size: int, how: str) -> Tensor | None:
    """Train in a group of two out of four ranks; every rank takes part in one."""
    pairs = [[0, 1], [2, 3]]
    if how == "mesh":
        group: Any = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "dp"))["dp"]
    elif how == "process group":
        group = [dist.new_group(ranks) for ranks in pairs][rank // 2]
    else:
        for i, ranks in enumerate(pairs):
            gw.new_group(f"pair{i}", ranks)
        group = f"pair{rank // 2}"
    return together(rank % 2, 2, group=group)


@pytest.mark.parametrize("how", ["name", "process group", "mesh"])
def test_a_group_may_be_a_name_a_process_group_or_a_mesh_axis(how: str) -> None:
    for result in pool.run(4, in_group, how):
        assert error(result, alone()) < 1e-6


def groups_apart(rank: int, world_size: int) -> float | None:
    """Only ranks 0 and 2 train; rank 2's parameters come from the group's first rank."""
    gw.new_group("pair", [0, 2])
    if rank == 1:
        return None
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, float(rank))
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, group="pair")
    (model.weight * (rank + 1)).sum().backward()
    optimizer.step()
    return float(model.weight)


def test_a_subgroup_averages_over_its_own_ranks_only() -> None:
    assert pool.run(3, groups_apart) == [-2.0, None, -2.0]


NO_TORCHRUN = dict.fromkeys(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])


def solo(rank: int, world_size: int) -> tuple[Tensor, int, int]:
    model = mlp()
    result = train(model, wrapped(model), [batch(seed=s) for s in range(4)])
    return result, gw.rank(), gw.size()


def test_a_world_of_one_needs_no_torchrun_and_no_init_and_equals_the_plain_loop() -> None:
    [outcome] = pool.fresh(1, solo, joins_group=False, env=NO_TORCHRUN)
    assert outcome.error is None, outcome.text
    result, rank, size = outcome.value
    assert (rank, size) == (0, 1)
    assert torch.equal(result, alone())


def adopted(rank: int, world_size: int) -> Tensor:
    dist.init_process_group("gloo")
    result = together(rank, world_size)
    dist.destroy_process_group()
    return result


def test_the_wrapper_works_in_a_world_that_torch_made_and_lets_torch_end_it() -> None:
    for outcome in pool.fresh(2, adopted, joins_group=False):
        assert outcome.error is None, outcome.text
        assert error(outcome.value, alone()) < 1e-6


def broadcast_at_construction(rank: int, world_size: int, flag: bool) -> bool:
    model = mlp(seed=rank)
    wrapped(model, broadcast_parameters=flag)
    return torch.equal(weights(model), weights(mlp(seed=0)))


def test_parameters_come_from_rank_0_at_construction_unless_told_otherwise() -> None:
    assert pool.run(2, broadcast_at_construction, True) == [True, True]
    assert pool.run(2, broadcast_at_construction, False) == [True, False]


def after_close(rank: int, world_size: int) -> int:
    model = mlp()
    optimizer = wrapped(model)
    train(model, optimizer, [part(batch(), rank, world_size)])
    optimizer.close()
    with collectives() as log:
        loss_of(model, batch()).backward()
    return len(log)


def test_a_closed_wrapper_leaves_plain_parameters() -> None:
    assert pool.run(2, after_close) == [0, 0]
