"""The DDP drop-in: what a user of torch's class relies on, with torch's class as the witness where it can be one."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradweave as gw
from tests.optim.models import Branches, Normed, flat, gradients, inputs, same
from tests.support import pool

TorchDDP = nn.parallel.DistributedDataParallel


# -- state and copies --------------------------------------------------------------------------------------------------------


def states(rank: int, world_size: int) -> tuple[list[str], list[str], bool]:
    """Keys of both classes; whether loading in both directions gives equal models."""
    ours, theirs = gw.DistributedDataParallel(Normed()), TorchDDP(Normed())
    ours(inputs(rank)).sum().backward()
    torch.optim.SGD(ours.parameters(), lr=0.5).step()
    theirs.load_state_dict(ours.state_dict())
    again = gw.DistributedDataParallel(Normed())
    again.load_state_dict(theirs.state_dict())
    plain = Normed()
    plain.load_state_dict(ours.module.state_dict())
    equal = all(torch.equal(v, again.state_dict()[k]) for k, v in ours.state_dict().items())
    return list(ours.state_dict()), list(theirs.state_dict()), equal and flat(plain) == flat(ours)


def test_state_dict_has_torchs_keys_and_loads_both_ways() -> None:
    for ours, theirs, equal in pool.run(2, states):
        assert ours == theirs and ours[0] == "module.layer.weight"
        assert equal


def copied(rank: int, world_size: int, way: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Gradients of a copy that trains beside its original, those of the original, and of torch's class."""
    model = gw.DistributedDataParallel(Branches(), bucket_cap_mb=0)
    model(inputs(rank, 1)).square().sum().backward()
    other = copy.deepcopy(model) if way == "deepcopy" else pickle.loads(pickle.dumps(model))
    witness = TorchDDP(Branches())
    for each in (model, other, witness):
        each.zero_grad()
        each(inputs(rank, 2)).square().sum().backward()
    assert [(s.first, s.last) for s in other.segments] == [(i, i) for i in range(4)]
    return gradients(other), gradients(model), gradients(witness)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_a_copy_trains_like_its_original(way: str) -> None:
    for other, model, witness in pool.run(2, copied, way):
        same(other, witness)
        same(model, witness)


def pickled_in_a_subgroup(rank: int, world_size: int) -> str:
    import torch.distributed as dist

    model = gw.DistributedDataParallel(Branches(), process_group=dist.new_group([0, 1]))
    with pytest.raises(RuntimeError) as caught:
        pickle.dumps(model)
    return str(caught.value)


def test_pickling_is_for_the_default_group_as_in_torch() -> None:
    assert "default process group" in pool.run(2, pickled_in_a_subgroup)[0]


# -- accumulation ------------------------------------------------------------------------------------------------------------


def accumulated(rank: int, world_size: int, order: str) -> tuple[list[Any], list[Any]]:
    """Forwards and backwards in the given order, per step; gradients of ours and of torch's class after two steps.

    f, b: forward, backward.  F: forward inside no_sync.  B: backward inside no_sync.
    """
    results = []
    for kind in (gw.DistributedDataParallel, TorchDDP):
        model = kind(Branches())
        for step in range(2):
            model.zero_grad()
            losses: list[Tensor] = []
            for nth, what in enumerate(order):
                context = model.no_sync() if what.isupper() else torch.enable_grad()
                with context:
                    if what in "fF":
                        losses.append(model(inputs(rank, 10 * step + nth)).square().mean())
                    else:
                        losses.pop(0).backward()
        results.append(gradients(model))
    return results[0], results[1]


@pytest.mark.parametrize("order", ["fb", "FBfb", "FBFBfb", "FbFbfb", "FBFB", "FBfbFB", "fbfb"])
def test_no_sync_accumulates_as_in_torch(order: str) -> None:
    for ours, theirs in pool.run(2, accumulated, order):
        same(ours, theirs)


def two_forwards(rank: int, world_size: int, one_backward: bool) -> tuple[list[Any], list[Any]]:
    """Two forwards, then one backward of the sum or two backwards; the averages by hand."""
    model, expected = gw.DistributedDataParallel(Branches()), Branches()
    for step in range(3):
        model.zero_grad()
        first, second = (model(inputs(rank, 2 * step + nth)).square().mean() for nth in range(2))
        if one_backward:
            (first + second).backward()
        else:
            first.backward()
            second.backward()
    for peer in range(world_size):
        for nth in range(2):
            (expected(inputs(peer, 4 + nth)).square().mean() / world_size).backward()
    return gradients(model), gradients(expected)


@pytest.mark.parametrize("one_backward", [True, False])
def test_two_forwards_before_backward_give_the_sum_of_both_averages(one_backward: bool) -> None:
    for ours, expected in pool.run(2, two_forwards, one_backward):
        same(ours, expected)


def failed_inside(rank: int, world_size: int) -> tuple[bool, list[Any], list[Any]]:
    """An exception inside no_sync; then training goes on as in a wrapper that never saw it."""
    model, witness = gw.DistributedDataParallel(Branches()), gw.DistributedDataParallel(Branches())
    with pytest.raises(KeyError), model.no_sync():
        model(inputs(rank)).sum().backward()
        raise KeyError
    restored = model.require_backward_grad_sync
    for each in (model, witness):
        each.zero_grad()
        each(inputs(rank, 3)).square().sum().backward()
    return restored, gradients(model), gradients(witness)


def test_an_exception_inside_no_sync_leaves_a_usable_wrapper() -> None:
    for restored, ours, witness in pool.run(2, failed_inside):
        assert restored
        same(ours, witness)


# -- forwards ----------------------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["out", "twice"])


@dataclasses.dataclass
class Held:
    """A dataclass output."""

    out: Tensor


class Shaped(nn.Module):
    """Wraps its output in the given shape."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.shape = nn.Linear(3, 3), shape

    def forward(self, *, x: Tensor) -> Any:
        out = self.layer(x)
        shapes = {"dict": {"out": out}, "tuple": (out, [out]), "named": Pair(out, 2 * out), "dataclass": Held(out)}
        return shapes[self.shape]


def shaped(rank: int, world_size: int, shape: str) -> tuple[str, list[Any], list[Any]]:
    """The type of the output and gradients through it; keyword inputs."""
    results, kind_of_output = [], ""
    for kind in (gw.DistributedDataParallel, TorchDDP):
        model = kind(Shaped(shape))
        for step in range(2):
            model.zero_grad()
            output = model(x=inputs(rank, step))
            kind_of_output = kind_of_output or type(output).__name__
            out = output["out"] if shape == "dict" else output[0] if isinstance(output, tuple) else output.out
            out.square().mean().backward()
        results.append(gradients(model))
    return kind_of_output, results[0], results[1]


@pytest.mark.parametrize(("shape", "name"), [("dict", "dict"), ("tuple", "tuple"), ("named", "Pair"), ("dataclass", "Held")])
def test_outputs_of_every_shape_pass_unchanged(shape: str, name: str) -> None:
    for kind_of_output, ours, theirs in pool.run(2, shaped, shape):
        assert kind_of_output == name
        same(ours, theirs)


def inferred(rank: int, world_size: int) -> tuple[bool, list[Any], list[Any]]:
    """Inference between training steps, on one rank only, under no_grad and inference_mode, in eval mode."""
    model, witness = gw.DistributedDataParallel(Branches()), TorchDDP(Branches())
    equal = True
    for step in range(3):
        if rank == step % 2:
            model.eval()
            for context in (torch.no_grad(), torch.inference_mode()):
                with context:
                    equal = equal and torch.equal(model(inputs(7)), model.module(inputs(7)))
            assert not model.module.a.training
            model.train()
        for each in (model, witness):
            each.zero_grad()
            each(inputs(rank, step)).square().mean().backward()
    return equal and model.module.training, gradients(model), gradients(witness)


def test_inference_on_one_rank_alone_communicates_nothing_and_disturbs_nothing() -> None:
    for equal, ours, theirs in pool.run(2, inferred):
        assert equal
        same(ours, theirs)


def abandoned(rank: int, world_size: int) -> tuple[list[Any], list[Any]]:
    """A training forward without a backward, before and between steps."""
    model, witness = gw.DistributedDataParallel(Branches()), TorchDDP(Branches())
    for step in range(3):
        model(inputs(rank, 50 + step))
        for each in (model, witness):
            each.zero_grad()
            each(inputs(rank, step)).square().mean().backward()
    return gradients(model), gradients(witness)


def test_a_forward_without_backward_changes_nothing() -> None:
    for ours, theirs in pool.run(2, abandoned):
        same(ours, theirs)


def no_gradient_output(rank: int, world_size: int) -> list[float]:
    """The module behaves as one: attributes, children, hooks, `to`."""
    model = gw.DistributedDataParallel(Branches())
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("outer"))
    model.module.register_forward_hook(lambda *_: calls.append("inner"))
    names = [name for name, _ in model.named_parameters()]
    model(inputs(rank)).sum().backward()
    model.requires_grad_(True)
    assert calls == ["inner", "outer"] and names == [f"module.{n}" for n, _ in model.module.named_parameters()]
    assert sum(1 for _ in model.children()) == 1
    return [float(p.grad.sum()) for p in model.parameters() if p.grad is not None]


def test_the_wrapper_is_a_module_with_one_child() -> None:
    first, second = pool.run(2, no_gradient_output)
    assert first == pytest.approx(second) and len(first) == 4


def closed(rank: int, world_size: int) -> tuple[float, float]:
    """After close() the module trains alone, and can be wrapped again."""
    module = nn.Linear(1, 1, bias=False)
    model = gw.DistributedDataParallel(module)
    model(torch.ones(1, 1)).sum().backward()
    model.close()
    module.zero_grad()
    module(torch.full((1, 1), float(rank))).sum().backward()
    alone = float(module.weight.grad)
    again = gw.DistributedDataParallel(module)
    module.zero_grad()
    again(torch.full((1, 1), float(rank))).sum().backward()
    return alone, float(module.weight.grad)


def test_close_gives_the_plain_module_back() -> None:
    assert pool.run(2, closed) == [(0.0, 0.5), (1.0, 0.5)]
