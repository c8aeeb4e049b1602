"""All-gather, reduce-scatter, all-to-all: uneven rows, structures, errors."""

from __future__ import annotations

import pytest
import torch

import gradweave as gw
from gradweave.errors import ConfigError, MismatchError
from tests.support import pool


def gather(rank: int, world_size: int) -> list:
    """Rank r gives r rows (rank 0 none), in several dtypes, strided, 0-dim and numbers."""
    x = {
        "rows": torch.full((rank, 2), float(rank)),
        "half": torch.full((3, 1 + rank), rank, dtype=torch.bfloat16).t(),
        "bits": torch.tensor([True, rank > 0]),
        "scalar": torch.tensor(rank),
        "number": 1.5 * rank,
        "fp8": torch.full((1,), float(rank)).to(torch.float8_e4m3fn),
    }
    y = gw.allgather(x)
    assert y["fp8"].float().tolist() == [0.0, 1.0, 2.0] and y["half"].dtype == torch.bfloat16
    later = gw.allgather(torch.tensor([rank]), async_op=True, check=False)
    return [
        y["rows"].tolist(),
        y["half"][:, 0].tolist(),
        y["bits"].tolist(),
        y["scalar"].tolist(),
        y["number"],
        later.wait().tolist(),
    ]


def scatter(rank: int, world_size: int, op: str, dtype: torch.dtype, rows: int) -> bool:
    def value(r: int) -> torch.Tensor:
        return (torch.arange(2.0 * rows).view(rows, 2) + 1 + r).to(dtype)

    whole = gw.allreduce(value(rank), op)
    a, (b,) = gw.reduce_scatter((value(rank), [value(rank).t().contiguous().t()]), op)
    c = gw.reduce_scatter(value(rank), op, async_op=True, check=False).wait()
    counts = [rows // world_size + (r < rows % world_size) for r in range(world_size)]
    mine = whole.split(counts)[rank]
    # The two add in different orders.
    return all(part.dtype == dtype and torch.allclose(part, mine, rtol=1e-6, atol=0) for part in (a, b, c))


def transpose(rank: int, world_size: int) -> list:
    """Even parts; then rank r sends s rows of the value 10 r + s to rank s."""
    even = gw.alltoall(torch.arange(world_size) + 10 * rank)
    values = torch.cat([torch.full((s, 2), 10.0 * rank + s) for s in range(world_size)])
    splits = list(range(world_size))
    moved, received = gw.alltoall({"a": values, "b": values[:, 0].to(torch.int16)}, splits)
    later = gw.alltoall(torch.arange(4), async_op=True)
    return [even.tolist(), moved["a"][:, 0].tolist(), moved["b"].tolist(), received, later.wait().tolist()]


def refused(rank: int, world_size: int, what: str) -> None:
    odd = rank == 1
    calls = {
        "gather cols": lambda: gw.allgather(torch.ones(2, 3 + odd)),
        "gather dtype": lambda: gw.allgather(torch.ones(2, dtype=torch.int32 if odd else torch.int64)),
        "gather ndim": lambda: gw.allgather(torch.ones(1) if odd else torch.tensor(1.0)),
        "gather sparse": lambda: gw.allgather(torch.ones(2).to_sparse()),
        "scatter shape": lambda: gw.reduce_scatter(torch.ones(2 + odd)),
        "scatter number": lambda: gw.reduce_scatter([3.0]),
        "scatter 0-dim": lambda: gw.reduce_scatter(torch.tensor(3.0)),
        "scatter average": lambda: gw.reduce_scatter(torch.ones(2, dtype=torch.int32), "average"),
        "scatter sparse": lambda: gw.reduce_scatter(torch.ones(2).to_sparse()),
        "all cols": lambda: gw.alltoall(torch.ones(2, 3 + odd)),
        "all 0-dim": lambda: gw.alltoall(torch.tensor(1)),
        "all some splits": lambda: gw.alltoall(torch.ones(2), [1, 1] if odd else None),
        "all sum": lambda: gw.alltoall(torch.ones(2), [1, 1 + odd]),
        "all count": lambda: gw.alltoall(torch.ones(2), [1, 1, 0] if odd else [1, 1]),
        "all negative": lambda: gw.alltoall(torch.ones(2), [3, -1]),
        "all bool": lambda: gw.alltoall(torch.ones(2), [True, 1]),
        "all kind": lambda: gw.alltoall(torch.ones(2), 2),
    }
    calls[what]()


def test_allgather_concatenates_uneven_rows_of_every_kind() -> None:
    rows = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    bits = [True, False, True, True, True, True]
    expected = [rows, [0, 1, 1, 2, 2, 2], bits, [0, 1, 2], [0.0, 1.5, 3.0], [0, 1, 2]]
    assert pool.run(3, gather) == [expected] * 3


@pytest.mark.parametrize("rows", [0, 1, 3, 7])
@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("sum", torch.float32),
        ("average", torch.complex64),
        ("max", torch.int16),
        ("product", torch.bool),
        ("min", torch.bfloat16),
    ],
)
def test_reduce_scatter_is_this_ranks_part_of_the_allreduce(op: str, dtype: torch.dtype, rows: int) -> None:
    assert pool.run(3, scatter, op, dtype, rows) == [True] * 3


def test_alltoall_moves_even_and_uneven_parts() -> None:
    results = pool.run(3, transpose)
    assert [r[0] for r in results] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    assert [r[1] for r in results] == [[], [1.0, 11.0, 21.0], [2.0, 2.0, 12.0, 12.0, 22.0, 22.0]]
    assert [r[2] for r in results] == [[], [1, 11, 21], [2, 2, 12, 12, 22, 22]]
    assert [r[3] for r in results] == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]
    assert [r[4] for r in results] == [[0, 1] * 3, [2] * 3, [3] * 3]


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("gather cols", MismatchError, r'rank 0 has "float32 \[any, 3\]", rank 1 has "float32 \[any, 4\]"'),
        ("gather dtype", MismatchError, r"rank 0 has \"int64 \[any\]\", rank 1 has \"int32"),
        ("gather ndim", MismatchError, r'rank 0 has "float32 \[\]", rank 1 has "float32 \[any\]"'),
        ("gather sparse", ConfigError, "allgather takes dense tensors"),
        ("scatter shape", MismatchError, r'rank 0 has "float32 \[2\]", rank 1 has "float32 \[3\]"'),
        ("scatter number", ConfigError, r"a number or 0-dim tensor at \[0\]"),
        ("scatter 0-dim", ConfigError, "reduce_scatter divides dim 0"),
        ("scatter average", ConfigError, 'op="average" of torch.int32'),
        ("scatter sparse", ConfigError, "reduce_scatter takes dense tensors"),
        ("all cols", MismatchError, r'rank 0 has "float32 \[any, 3\]"'),
        ("all 0-dim", ConfigError, "alltoall divides dim 0"),
        ("all some splits", MismatchError, r'\["splits given"\]: rank 0 has false, rank 1 has true'),
        ("all sum", ConfigError, r"splits=\[1, 2\] sum to 3, the tensor has 2 rows, on rank 1"),
        ("all count", ConfigError, r"splits=\[1, 1, 0\] for 2 peers, on rank 1"),
        ("all negative", ConfigError, "holds -1"),
        ("all bool", ConfigError, "holds True"),
        ("all kind", ConfigError, "splits=2 for 2 peers"),
    ],
)
def test_wrong_or_different_arguments_are_refused_on_every_rank(what: str, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        pool.run(2, refused, what)
    assert "rank 1 ---" in str(caught.value.__cause__)
