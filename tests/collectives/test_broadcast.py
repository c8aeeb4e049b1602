"""Broadcast: tensors, structures, state_dicts, modules, optimizers, in place."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.errors import ConfigError, MismatchError
from tests.support import pool


def tensors(rank: int, world_size: int, root: int) -> list:
    """Every dtype, 0-dim, empty, non-contiguous; the same objects hold the result."""
    dtypes = [torch.float32, torch.bfloat16, torch.int16, torch.bool, torch.complex64, torch.float64, torch.uint16]
    x = {str(d): torch.tensor([rank, 1, 0]).to(d) for d in dtypes}
    x["scalar"] = torch.tensor(float(rank))
    x["empty"] = torch.empty(0, 3)
    x["strided"] = torch.full((4, 3), float(rank)).t()
    x["channels_last"] = (torch.arange(24.0).view(1, 2, 3, 4) + rank).to(memory_format=torch.channels_last)
    before = {key: value.data_ptr() for key, value in x.items()}
    result = gw.broadcast(x, root=root)
    assert result is x and {key: value.data_ptr() for key, value in x.items()} == before
    expected = {str(d): torch.tensor([root, 1, 0]).to(d) for d in dtypes}
    assert all(torch.equal(x[key], value) for key, value in expected.items())
    assert torch.equal(x["channels_last"], torch.arange(24.0).view(1, 2, 3, 4) + root)
    return [float(x["scalar"]), x["strided"].unique().tolist(), x["empty"].shape]


def plain_values(rank: int, world_size: int) -> tuple:
    x = {"epoch": rank + 5, "names": ["a", rank], "pair": (rank, torch.tensor(rank)), "w": torch.tensor([rank])}
    result = gw.broadcast(x, root=1)
    assert result is x
    return x["epoch"], x["names"], x["pair"][0], int(x["pair"][1]), gw.broadcast(rank, root=2)


def module(rank: int, world_size: int) -> bool:
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net[1].running_mean.fill_(rank)
    net[2].weight = nn.Parameter(net[0].weight.detach().t().clone())
    state_of_rank_1 = gw.broadcast(OrderedDict((k, v.clone()) for k, v in net.state_dict().items()), root=1)
    assert gw.broadcast(net, root=1) is net
    return all(torch.equal(net.state_dict()[k], v) for k, v in state_of_rank_1.items()) and float(net[1].running_mean[0]) == 1


def optimizer(rank: int, world_size: int, kind: str) -> tuple:
    """Only the root has taken steps, with other settings; afterwards a step gives the same weights everywhere."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2).to(torch.bfloat16 if kind == "sgd" else torch.float32)
    make = {
        "sgd": lambda lr: torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9),
        "adam": lambda lr: torch.optim.Adam(net.parameters(), lr=torch.tensor(lr), amsgrad=True),
        "lbfgs": lambda lr: torch.optim.LBFGS(net.parameters(), lr=lr, max_iter=3),
    }[kind]
    opt = make(0.1 if rank == 0 else 0.7)

    def step() -> None:
        def closure() -> torch.Tensor:
            opt.zero_grad()
            loss = net(torch.ones(4, 3, dtype=net.weight.dtype)).square().mean()
            loss.backward()
            return loss

        opt.step(closure)

    for _ in range(3 if rank == 0 else 0):
        step()
    gw.broadcast(net)
    assert gw.broadcast(opt) is opt
    step()
    return opt.param_groups[0]["lr"], net.weight.detach().double().tolist()


def asynchronous(rank: int, world_size: int) -> list:
    x = [torch.full((2,), float(rank)), torch.full((3,), rank)]
    pending = gw.broadcast(x, root=1, async_op=True)
    total = gw.allreduce(1)
    assert pending.wait() is x and pending.wait() is x and pending.done()
    return [x[0].tolist(), x[1].tolist(), total]


def long_and_short(rank: int, world_size: int) -> bool:
    """More than one message: several small, one larger than the message size, small again."""
    from gradweave.collectives.runtime import broadcast as module

    module.MESSAGE_BYTES = 1024
    x = [torch.full((n,), float(rank)) for n in (10, 100, 1000, 1, 200, 200)]
    gw.broadcast(x, root=0)
    return all(float(t.abs().sum()) == 0 for t in x)


def in_subgroup(rank: int, world_size: int) -> float:
    gw.new_group("late", [1, 2])
    x = torch.tensor(float(rank))
    if rank:
        gw.broadcast(x, root=0, group="late")
    return float(x)


def refused(rank: int, world_size: int, what: str) -> None:
    if what == "root":
        gw.broadcast(torch.ones(2), root=world_size)
    if what == "bool":
        gw.broadcast(torch.ones(2), root=False)
    if what == "sparse":
        gw.broadcast(torch.ones(2).to_sparse())
    if what == "roots":
        gw.broadcast(torch.ones(2), root=rank)
    if what == "shape":
        gw.broadcast({"w": torch.ones(2), "b": torch.ones(2 + rank)})
    if what == "keys":
        gw.broadcast({"w": torch.ones(2)} if rank else {"v": torch.ones(2)})
    if what == "models":
        gw.broadcast(nn.Linear(2, 2, bias=rank == 0))
    if what == "groups":
        gw.broadcast(torch.optim.SGD(nn.Linear(2, 2 + rank).parameters()))


@pytest.mark.parametrize("root", [0, 2])
def test_tensors_of_every_dtype_and_shape_arrive_in_place(root: int) -> None:
    assert pool.run(3, tensors, root) == [[float(root), [float(root)], (0, 3)]] * 3


def test_plain_values_are_replaced_and_tuples_returned() -> None:
    results = pool.run(3, plain_values)
    assert results == [(6, ["a", 1], 1, 1, 2)] * 3


def test_a_module_gets_parameters_and_buffers() -> None:
    assert pool.run(2, module) == [True, True]


@pytest.mark.parametrize("kind", ["sgd", "adam", "lbfgs"])
def test_an_optimizer_gets_missing_state_and_settings(kind: str) -> None:
    first, second = pool.run(2, optimizer, kind)
    assert first == second


def test_async_broadcast_overlaps_with_another_collective() -> None:
    assert pool.run(2, asynchronous) == [[[1.0, 1.0], [1, 1, 1], 2]] * 2


def test_large_structures_travel_in_several_messages() -> None:
    assert pool.run(2, long_and_short) == [True, True]


def test_root_is_a_peer_index_of_the_group() -> None:
    assert pool.run(3, in_subgroup) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("root", ConfigError, "root=2 in a group of 2"),
        ("bool", ConfigError, "root=False"),
        ("sparse", ConfigError, "layout torch.sparse_coo"),
        ("roots", MismatchError, r'at \["root"\]: rank 0 has "0", rank 1 has "1"'),
        ("shape", MismatchError, r"""rank 0 has "\['b'\] float32 \[2\]", rank 1 has "\['b'\] float32 \[3\]\""""),
        ("keys", MismatchError, r"""rank 0 has "\['v'\] float32 \[2\]", rank 1 has "\['w'\] float32 \[2\]\""""),
        ("models", MismatchError, r"""rank 0 has "\['bias'\] float32 \[2\]", rank 1 has nothing"""),
        (
            "groups",
            MismatchError,
            r'\["parameter groups"\]\[0\]\[0\]: rank 0 has "float32 \[2, 2\]", rank 1 has "float32 \[3, 2',
        ),
    ],
)
def test_wrong_or_different_arguments_are_refused_on_every_rank(what: str, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        pool.run(2, refused, what)
    assert "rank 1 ---" in str(caught.value.__cause__)
