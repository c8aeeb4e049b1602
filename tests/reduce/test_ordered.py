"""The ordered reduction: the sum in rank order, in the dtype of accumulation, divided and rounded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradweave as gw
from tests.support import pool


def sums(rank: int, world_size: int, dtype: torch.dtype, count: int, op: str) -> tuple[Tensor, list[Tensor]]:
    """The reduced gradient of one parameter of `count` elements, and what every rank gave."""
    param = nn.Parameter(torch.zeros(count, dtype=dtype))
    given = [
        torch.randn(count, generator=torch.Generator().manual_seed(peer), dtype=torch.float64) for peer in range(world_size)
    ]
    given = [tensor.to(dtype) for tensor in given]
    optimizer = gw.DistributedOptimizer(torch.optim.SGD([param], lr=0.1), [("p", param)], reduce="ordered", op=op)
    for _ in range(2):
        param.grad = None
        (param * given[rank]).sum().backward()
        optimizer.synchronize()
        reduced = param.grad.clone()
        optimizer.step()
    return reduced, given


@pytest.mark.parametrize("op", ["average", "sum"])
@pytest.mark.parametrize("count", [1, 2, 7, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_it_is_the_sum_in_rank_order_bit_for_bit(dtype: torch.dtype, count: int, op: str) -> None:
    wide = torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
    for reduced, given in pool.run(3, sums, dtype, count, op):
        total = given[0].to(wide)
        for tensor in given[1:]:
            total = total + tensor.to(wide)
        assert torch.equal(reduced, (total / 3 if op == "average" else total).to(dtype))


def odd_models(rank: int, world_size: int, kind: str) -> tuple[list[float], list[float]]:
    """Ordered against dense on a model with complex, unused, sparse, mixed or accumulated gradients."""
    found = []
    for reduce in ("ordered", "dense"):
        torch.manual_seed(0)
        model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
        options: dict[str, Any] = {}
        if kind == "mixed":
            model["b"].double()
        if kind == "complex":
            model["b"].to(torch.complex64)
        if kind == "sparse":
            model["c"] = nn.Embedding(5, 4, sparse=True)
        if kind == "accumulation":
            options["accumulate"] = 2
        optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, reduce=reduce, **options)
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(rank))
        for step in range(3):
            for _ in range(options.get("accumulate", 1)):
                loss = model["a"](x).sum()
                if kind != "unused" or (step + rank) % 2:
                    out = model["b"](x.to(model["b"].weight.dtype)).sum()
                    loss = loss + (out.abs() if out.is_complex() else out)
                if kind == "sparse":
                    loss = loss + model["c"](torch.tensor([rank, 3])).sum()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append([float(p.detach().abs().sum()) for p in model.parameters()])
        optimizer.close()
    return found[0], found[1]


@pytest.mark.parametrize("kind", ["plain", "mixed", "complex", "sparse", "unused", "accumulation"])
def test_it_agrees_with_the_dense_reduction_on(kind: str) -> None:
    for ordered, dense in pool.run(3, odd_models, kind):
        assert ordered == pytest.approx(dense, rel=1e-6)


def test_an_unknown_reduction_is_refused() -> None:
    gw.init()
    model = nn.Linear(2, 2)
    with pytest.raises(gw.ConfigError, match=r"reduce='ring'.*'dense', 'ordered'"):
        gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, reduce="ring")


def dies(rank: int, world_size: int) -> str:
    import os
    import signal

    model = nn.Linear(64, 64)
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model, reduce="ordered", timeout=6)
    try:
        for step in range(3):
            if rank == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
    except gw.CollectiveError as error:
        return str(error)
    return "nothing"


def test_a_dead_peer_is_named() -> None:
    outcome = pool.fresh(2, dies)[0]
    assert "did not arrive: 1" in outcome.value and "step 2" in outcome.value, outcome
