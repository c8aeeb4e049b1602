"""Parameters that got no gradient under the DDP drop-in: torch's error, or torch's gradients."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

import gradweave as gw
from gradweave.errors import StateError
from tests.optim.models import Branches, gradients, inputs, same
from tests.support import pool

TorchDDP = nn.parallel.DistributedDataParallel


def unfinished(rank: int, world_size: int, use: list[str], step: int, kwargs: dict[str, Any]) -> str:
    """Rank r uses the branches `use[r]` in step `step`; the error of the forward that follows."""
    model = gw.DistributedDataParallel(Branches(), **kwargs)
    for nth in range(step + 1):
        model.zero_grad()
        model(inputs(rank), use=use[rank] if nth == step else "ab").sum().backward()
    try:
        model(inputs(rank), use="ab").sum().backward()
    except RuntimeError as error:
        assert isinstance(error, StateError)
        return str(error)
    return "no error"


@pytest.mark.parametrize("step", [0, 1, 3])
@pytest.mark.parametrize("use", [["a", "a"], ["a", "ab"], ["ab", "b"], ["a", "b"]], ids=str)
def test_an_unused_parameter_is_torchs_error_in_the_next_forward_on_every_rank(use: list[str], step: int) -> None:
    missing = sorted({"a", "b"} - (set(use[0]) & set(use[1])))
    for text in pool.run(2, unfinished, use, step, {}):
        assert "Expected to have finished reduction in the prior iteration before starting a new one" in text
        assert all(f"{name}.weight" in text and f"{name}.bias" in text for name in missing)
        assert "find_unused_parameters=True" in text


@pytest.mark.parametrize("kwargs", [{"find_unused_parameters": True}, {"static_graph": True}], ids=str)
def test_with_find_unused_parameters_or_static_graph_it_is_none(kwargs: dict[str, Any]) -> None:
    assert pool.run(2, unfinished, ["a", "a"], 0, kwargs) == ["no error"] * 2


def found(rank: int, world_size: int, use: list[str], set_to_none: bool) -> tuple[list[Any], list[Any]]:
    """Three steps in which rank r uses `use[r]`; ours and torch's class."""
    results = []
    for kind in (gw.DistributedDataParallel, TorchDDP):
        model = kind(Branches(), find_unused_parameters=True)
        for step in range(3):
            model.zero_grad(set_to_none=set_to_none)
            model(inputs(rank, step), use=use[rank]).square().mean().backward()
        results.append(gradients(model))
    return results[0], results[1]


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("use", [["a", "a"], ["a", "ab"], ["ab", "b"], ["a", "b"], ["ab", "ab"]], ids=str)
def test_find_unused_parameters_gives_torchs_gradients(use: list[str], set_to_none: bool) -> None:
    for ours, theirs in pool.run(2, found, use, set_to_none):
        same(ours, theirs)


def static(rank: int, world_size: int) -> tuple[list[Any], list[Any]]:
    """A graph that never uses one branch and runs the other twice through a re-entrant checkpoint."""
    from torch.utils.checkpoint import checkpoint

    results = []
    for kind in (gw.DistributedDataParallel, TorchDDP):
        model = kind(Branches(), static_graph=True)
        inner = model.module.forward
        model.module.forward = lambda x, inner=inner: checkpoint(inner, x, "a", use_reentrant=True)
        for step in range(4):
            model.zero_grad()
            model(inputs(rank, step).requires_grad_()).square().mean().backward()
        results.append(gradients(model))
    return results[0], results[1]


def test_static_graph_takes_unused_parameters_and_checkpoints() -> None:
    for ours, theirs in pool.run(2, static):
        same(ours, theirs)


def declared(rank: int, world_size: int) -> tuple[bool, str]:
    model = gw.DistributedDataParallel(Branches())
    model._set_static_graph()
    late = gw.DistributedDataParallel(Branches())
    late(inputs(rank)).sum().backward()
    with pytest.raises(RuntimeError) as caught:
        late._set_static_graph()
    return model.static_graph, str(caught.value)


def test_a_static_graph_is_declared_before_training() -> None:
    flag, text = pool.run(2, declared)[0]
    assert flag and "before training loop starts" in text
