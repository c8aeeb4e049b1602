"""Rule 17: everything is deterministic given the seed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import gradweave as gw
from tests.semantics.helpers import same_bits, weights
from tests.support import pool


def trained(rank: int, world_size: int) -> tuple[Tensor, str]:
    """Dropout, a sparse embedding, bfloat16 and a change of plan: weights and the final segment list."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"words": nn.Embedding(30, 16, sparse=True), "body": nn.Linear(16, 16), "top": nn.Linear(16, 16).bfloat16()}
    )
    optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3), model)
    torch.manual_seed(rank)
    for step in range(8):
        if step == 3:
            gw.set_split_strategy_by_size([30, 30, 40])
        x = torch.tanh(model["body"](model["words"](torch.randint(0, 30, (7,)))))
        loss = model["top"](nn.functional.dropout(x, 0.3).bfloat16()).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model).float(), str(gw.get_split_strategy())


def test_two_runs_give_the_same_bits_and_segments_on_all_ranks() -> None:
    runs = [pool.run(3, trained) for _ in range(2)]
    first, segments = runs[0][0]
    for run in runs:
        for result, seen in run:
            assert same_bits(result, first)
            assert seen == segments
