"""Sparse gradients: the sum of dense equivalents, equal bits on all ranks, whatever each rank brings."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.reduce.sparse import empty_like_sparse, reduce_sparse
from tests.reduce.fakes import ThreadRanks


def rows(indices: list[int], width: int = 3, height: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """An embedding's gradient: random rows at `indices` (repeated ones add up)."""
    values = torch.randn(len(indices), width, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return torch.sparse_coo_tensor(torch.tensor([indices], dtype=torch.int64), values, (height, width), check_invariants=True)


def summed(locals_: list[Tensor], divisor: float = 2) -> list[Tensor]:
    """What each rank gets."""
    ranks = ThreadRanks(len(locals_))
    return ranks.run(lambda rank: reduce_sparse(locals_[rank], divisor, ranks))  # type: ignore[arg-type]


CASES = {
    "same rows": [[1, 4], [1, 4]],
    "other rows": [[0], [5]],
    "uneven": [[0, 1, 2, 3], [2]],
    "repeated rows": [[1, 1, 1], [4, 1]],
    "one brings nothing": [[], [3, 0]],
    "four ranks": [[0], [1, 2], [], [5, 0, 5]],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("indices", CASES.values(), ids=CASES.keys())
def test_the_result_is_the_mean_of_the_dense_gradients(indices: list[list[int]], dtype: torch.dtype) -> None:
    given = [rows(own, dtype=dtype, seed=rank) for rank, own in enumerate(indices)]
    expected = sum((one.to_dense() for one in given), torch.zeros(6, 3, dtype=dtype)) / 2
    for result in summed(given):
        assert result.is_coalesced() and result.dtype == dtype
        torch.testing.assert_close(result.to_dense(), expected)


def test_all_ranks_hold_the_same_bits() -> None:
    given = [rows([0, 3, 3], seed=1), rows([3, 5], seed=2), rows([3], seed=3)]
    first, *others = summed(given, 3)
    for other in others:
        assert torch.equal(first.indices(), other.indices()) and torch.equal(first.values(), other.values())


def test_the_division_comes_before_the_sum() -> None:
    given = [rows([2], seed=1), rows([2], seed=2)]
    divided = given[0].to_dense() / 3 + given[1].to_dense() / 3
    assert torch.equal(summed(given, 3)[0].to_dense(), divided)


def test_only_rows_that_some_rank_touched_are_stored() -> None:
    assert summed([rows([4]), rows([1, 4])])[0].indices().tolist() == [[1, 4]]


def test_every_rank_may_bring_nothing() -> None:
    for result in summed([rows([]), rows([])]):
        assert result.is_sparse and result._nnz() == 0 and result.shape == (6, 3)


@pytest.mark.usefixtures("alone")
def test_a_world_of_one_divides_and_coalesces() -> None:
    given = rows([2, 0, 2])
    result = reduce_sparse(given, 4, dist.group.WORLD)
    assert result.indices().tolist() == [[0, 2]]
    torch.testing.assert_close(result.to_dense(), given.to_dense() / 4)


def test_the_local_gradient_is_not_changed() -> None:
    given = rows([2, 0])
    before = given.to_dense()
    summed([given, rows([1])])
    assert torch.equal(given.to_dense(), before)


@pytest.mark.parametrize("sparse_dims", [1, 2])
def test_an_empty_gradient_adds_nothing_and_fits_its_parameter(sparse_dims: int) -> None:
    param = torch.nn.Parameter(torch.zeros(6, 3, dtype=torch.float64))
    empty = empty_like_sparse(param, sparse_dims)
    assert (empty.sparse_dim(), empty.shape, empty.dtype, empty._nnz()) == (sparse_dims, param.shape, torch.float64, 0)
    if sparse_dims == 1:
        other = rows([1], dtype=torch.float64)
        torch.testing.assert_close(summed([empty, other], 1)[0].to_dense(), other.to_dense())
