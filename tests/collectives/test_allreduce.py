"""All-reduce: operations, dtypes, structures, overlap, errors."""

from __future__ import annotations

from collections import namedtuple
from functools import reduce

import pytest
import torch

import gradweave as gw
from gradweave.errors import CollectiveError, ConfigError, GroupError, MismatchError
from tests.support import needs_free_order, pool

Point = namedtuple("Point", "x y")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32]
COMPLEX = [torch.complex64, torch.complex128]
COMBINE = {
    "sum": torch.add,
    "average": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


def _value(rank: int, dtype: torch.dtype) -> torch.Tensor:
    x = torch.arange(6).view(2, 3) % 3 + 1 + rank
    return (x + 1j * rank).to(dtype) if dtype.is_complex else x.to(dtype)


def _expected(world_size: int, op: str, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.complex128 if dtype.is_complex else torch.float64
    values = [_value(rank, dtype).to(wide) for rank in range(world_size)]
    total = reduce(COMBINE[op], values)
    return total / world_size if op == "average" else total


def every_dtype(rank: int, world_size: int, op: str) -> list[str]:
    dtypes = FLOATS + (INTEGERS if op != "average" else []) + (COMPLEX if op in ("sum", "average") else [])
    wrong = []
    for dtype in dtypes:
        x = _value(rank, dtype)
        kept = x.clone()
        y = gw.allreduce(x, op)
        tolerance = 4 * torch.finfo(dtype).eps if dtype in FLOATS + COMPLEX else 0
        close = torch.allclose(
            y.to(torch.complex128), _expected(world_size, op, dtype).to(torch.complex128), rtol=tolerance, atol=0
        )
        if not (close and y.dtype == dtype and torch.equal(x, kept)):
            wrong.append(f"{dtype}: {y}")
    return wrong


def booleans(rank: int, world_size: int) -> dict:
    x = torch.tensor([[True, False], [rank == 0, rank > 0]])
    return {op: gw.allreduce(x, op).tolist() for op in ("sum", "max", "min", "product")}


def structures(rank: int, world_size: int) -> tuple:
    weight = torch.nn.Parameter(torch.full((2, 2), float(rank)))
    x = {
        "list": [weight, torch.tensor(rank), torch.empty(0, 4)],
        "point": Point(torch.arange(6.0).view(2, 3).t() + rank, 2.5),
        "flag": rank == 1,
        "count": 3,
        "z": 1 + 1j,
    }
    y = gw.allreduce(x)
    assert list(y) == list(x) and isinstance(y["point"], Point) and not y["list"][0].requires_grad
    assert torch.equal(y["point"].x, 2 * torch.arange(6.0).view(2, 3).t() + 1)
    return y["list"][0].tolist(), int(y["list"][1]), tuple(y["list"][2].shape), y["point"].y, y["flag"], y["count"], y["z"]


def in_place(rank: int, world_size: int) -> bool:
    strided = torch.full((4, 3), float(rank)).t()
    x = [torch.full((3,), float(rank)), strided, torch.full((2,), rank == 1)]
    before = [t.data_ptr() for t in x]
    y = gw.allreduce(x, in_place=True)
    whole = torch.ones(3)
    gw.allreduce(whole, "average", in_place=True)
    same = y is x and [t.data_ptr() for t in x] == before
    return same and all(bool((t == 1).all()) for t in x) and bool((whole == 1).all())


def message_count(rank: int, world_size: int, check: bool) -> dict:
    """Tensors of one dtype are one message."""
    import torch.distributed as dist

    counts = {"all_reduce": 0, "all_gather_single": 0}

    def counted(name: str):
        real = getattr(dist, name)

        def call(*args, **kwargs):
            counts[name] += 1
            return real(*args, **kwargs)

        return real, call

    originals = {}
    for name in counts:
        originals[name], replacement = counted(name)
        setattr(dist, name, replacement)
    try:
        gw.allreduce([torch.ones(3), torch.ones(2, 2), torch.ones(1, dtype=torch.int64), 1.0, 2], check=check)
    finally:
        for name, real in originals.items():
            setattr(dist, name, real)
    return counts


def sparse(rank: int, world_size: int) -> bool:
    rows = [[0, 3], [3, 1], []][rank]
    x = torch.sparse_coo_tensor([rows], torch.full((len(rows), 2), float(rank + 1)), (5, 2))
    twice = torch.sparse_coo_tensor([[2, 2]], torch.ones(2), (4,))
    dense = gw.allreduce(x.to_dense())
    y, t = gw.allreduce((x, twice))
    mean = gw.allreduce(x, "average")
    written = x.clone().requires_grad_()
    gw.allreduce(written, in_place=True)
    return (
        y.layout is torch.sparse_coo
        and torch.equal(y.to_dense(), dense)
        and torch.equal(t.to_dense(), torch.tensor([0.0, 0, 6, 0]))
        and torch.allclose(mean.to_dense(), dense / 3)
        and torch.equal(written.detach().to_dense(), dense)
    )


def overlap(rank: int, world_size: int) -> tuple:
    """Two reductions and work of the host between start and wait; rank 1 starts late."""
    import time

    if rank == 1:
        time.sleep(0.3)
    first = gw.allreduce(torch.ones(1000), async_op=True, check=False)
    second = gw.allreduce({"a": rank}, "max", async_op=True, check=False)
    early = first.done() if rank == 0 else False
    product = torch.ones(8, 8) @ torch.ones(8, 8)
    answers = second.wait(), float(first.wait()[0]), float(product[0, 0])
    return early, first.done() and second.done(), first.wait() is first.wait(), answers


def two_groups(rank: int, world_size: int) -> list[float]:
    """Reductions on overlapping groups are under way at the same time, started in different orders."""
    gw.new_group("left", [0, 1])
    gw.new_group("right", [1, 2])
    mine = [name for name in ("left", "right") if (name == "left" and rank < 2) or (name == "right" and rank > 0)]
    order = [*mine, "world"] if rank != 1 else ["world", "right", "left"]
    pending = {name: gw.allreduce(torch.tensor(1.0 + rank), group=name, async_op=True, check=False) for name in order}
    return [float(pending[name].wait()) if name in pending else 0.0 for name in ("left", "right", "world")]


def refused(rank: int, world_size: int, what: str) -> None:
    odd = rank == 1
    calls = {
        "op": lambda: gw.allreduce(torch.ones(2), "mean"),
        "average of ints": lambda: gw.allreduce({"n": torch.ones(2, dtype=torch.int64)}, "average"),
        "average of a number": lambda: gw.allreduce(3, "average"),
        "max of complex": lambda: gw.allreduce(torch.ones(2, dtype=torch.complex64), "max"),
        "fp8": lambda: gw.allreduce(torch.ones(2).to(torch.float8_e4m3fn)),
        "string": lambda: gw.allreduce({"name": "x"}),
        "number in place": lambda: gw.allreduce([1.0], in_place=True),
        "max of sparse": lambda: gw.allreduce(torch.ones(2).to_sparse(), "max"),
        "csr": lambda: gw.allreduce(torch.ones(2, 2).to_sparse_csr()),
        "unknown group": lambda: gw.allreduce(torch.ones(2), group="nobody"),
        "shapes": lambda: gw.allreduce(torch.ones(3 if odd else 2)),
        "dtypes": lambda: gw.allreduce(torch.ones(2, dtype=torch.float64 if odd else torch.float32)),
        "structures": lambda: gw.allreduce([torch.ones(2)] * (1 + odd)),
        "ops": lambda: gw.allreduce(torch.ones(2), "max" if odd else "sum"),
        "layouts": lambda: gw.allreduce(torch.ones(2).to_sparse() if odd else torch.ones(2)),
    }
    calls[what]()


def lose_peer(rank: int, world_size: int) -> None:
    import os

    gw.allreduce(1)
    if rank == 1:
        os._exit(3)
    gw.allreduce([torch.ones(4), 1], check=False)


def late_peer(rank: int, world_size: int) -> None:
    import time

    gw.allreduce(1)
    if rank == 1:
        time.sleep(5)
    else:
        gw.allreduce(torch.ones(4), check=False)


@pytest.mark.parametrize("op", list(COMBINE))
@pytest.mark.parametrize("world_size", [2, 3])
def test_every_operation_and_dtype_gives_the_reference(op: str, world_size: int) -> None:
    assert pool.run(world_size, every_dtype, op) == [[]] * world_size


def test_booleans_mean_any_and_all() -> None:
    some, every = [[True, False], [True, True]], [[True, False], [False, False]]
    assert pool.run(2, booleans) == [{"sum": some, "max": some, "min": every, "product": every}] * 2


def test_structures_come_back_in_kind_with_numbers_as_numbers() -> None:
    assert pool.run(2, structures) == [([[1.0, 1.0]] * 2, 1, (0, 4), 5.0, True, 6, 2 + 2j)] * 2


def test_in_place_writes_into_the_tensors_given() -> None:
    assert pool.run(2, in_place) == [True, True]


@pytest.mark.parametrize("check", [True, False])
def test_tensors_of_a_dtype_are_one_message_and_the_check_one_exchange(check: bool) -> None:
    # float32, int64 (tensor and number share it), float64
    assert pool.run(2, message_count, check) == [{"all_reduce": 3, "all_gather_single": int(check)}] * 2


def test_sparse_tensors_add_as_their_dense_form() -> None:
    assert pool.run(3, sparse) == [True] * 3


@needs_free_order
def test_async_reductions_overlap_with_the_host_and_each_other() -> None:
    early, late, same, answers = zip(*pool.run(2, overlap), strict=True)
    assert not early[0] and all(late) and all(same)
    assert answers == (({"a": 1}, 2.0, 8.0),) * 2


@needs_free_order
def test_groups_reduce_at_the_same_time() -> None:
    assert pool.run(3, two_groups) == [[3.0, 0.0, 6.0], [3.0, 5.0, 6.0], [0.0, 5.0, 6.0]]


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("op", ConfigError, "op='mean'. Rule: op is one of sum, average, max, min, product"),
        ("average of ints", ConfigError, r"op=\"average\" of torch.int64 at \['n'\].*Fix: .*x.float\(\)"),
        ("average of a number", ConfigError, 'op="average" of torch.int64'),
        ("max of complex", ConfigError, "op='max' of torch.complex64"),
        ("fp8", ConfigError, "float8_e4m3fn cannot be reduced"),
        ("string", ConfigError, r"str 'x' at \['name'\]"),
        ("number in place", ConfigError, r"a Python number at \[0\]"),
        ("max of sparse", ConfigError, "op='max' of a tensor of layout torch.sparse_coo"),
        ("csr", ConfigError, "layout torch.sparse_csr"),
        ("unknown group", GroupError, "group 'nobody' is unknown"),
        ("shapes", MismatchError, r'rank 0 has "float32 \[2\]", rank 1 has "float32 \[3\]"'),
        ("dtypes", MismatchError, r'rank 0 has "float32 \[2\]", rank 1 has "float64 \[2\]"'),
        ("structures", MismatchError, r'rank 0 has nothing, rank 1 has "\[1\] float32 \[2\]"'),
        ("ops", MismatchError, r"""at \["op"\]: rank 0 has "'sum'", rank 1 has "'max'\""""),
        ("layouts", MismatchError, r'rank 0 has "float32 \[2\]", rank 1 has "float32 \[2\] sparse_coo"'),
    ],
)
def test_wrong_or_different_arguments_are_refused_on_every_rank(what: str, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        pool.run(2, refused, what)
    assert "rank 1 ---" in str(caught.value.__cause__)


def test_a_dead_peer_is_named_with_the_collective_and_group() -> None:
    error = pool.fresh(2, lose_peer, group_timeout_s=5)[0].error
    assert isinstance(error, CollectiveError)
    assert "[rank 0, group world] allreduce of 2 tensors did not finish: not heard from: rank 1" in str(error)


def test_a_late_peer_is_named_after_the_timeout() -> None:
    error = pool.fresh(2, late_peer, group_timeout_s=2)[0].error
    assert isinstance(error, CollectiveError)
    assert "not heard from: rank 1" in str(error)
