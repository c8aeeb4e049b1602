"""Rule 11: mixed dtypes, complex, sparse, zero-size and 0-dim parameters, other memory formats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.semantics.helpers import collectives, same_bits, wrapped
from tests.support import pool

SPLITS = ["single", "per_gradient"]


def rand(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


class Zoo(nn.Module):
    """One parameter of every kind; each one's gradient is a rank-dependent tensor of its own shape."""

    def __init__(self) -> None:
        super().__init__()
        self.fp32 = nn.Parameter(torch.zeros(3, 4))
        self.bf16 = nn.Parameter(torch.zeros(5, dtype=torch.bfloat16))
        self.fp64 = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.complex64 = nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        self.complex128 = nn.Parameter(torch.zeros(2, 2, dtype=torch.complex128))
        self.scalar = nn.Parameter(torch.zeros(()))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.transposed = nn.Parameter(torch.zeros(6, 4).t())
        self.channels_last = nn.Parameter(torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last))
        self.gap = nn.Parameter(torch.zeros(4, 6)[:, ::2])
        self.fp16 = nn.Parameter(torch.zeros(7, dtype=torch.float16))

    def values(self, rank: int, step: int) -> list[Tensor]:
        seeds = enumerate(self.parameters(), start=1000 * step + 100 * rank)
        return [rand(*p.shape, seed=seed, dtype=p.dtype) for seed, p in seeds]

    def forward(self, values: list[Tensor], layout: str) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for param, value in zip(self.parameters(), values, strict=True):
            other = value.t().contiguous().t() if layout == "other" and value.dim() == 2 else value
            product = param * other.conj()
            total = total + (product.real if product.is_complex() else product).sum().double()
        return total


def zoo(rank: int, world_size: int, strategy: str, overlap: bool, layout: str, accumulate: int) -> list:
    """(name, step) of every gradient that is not exactly the mean, and of every one whose strides differ from torch's."""
    model, plain = Zoo(), Zoo()
    optimizer = wrapped(
        model, torch.optim.SGD(model.parameters(), lr=0.0), strategy=strategy, overlap=overlap, accumulate=accumulate
    )
    wrong = []
    for step in range(3):
        for _ in range(accumulate):
            model(model.values(rank, step), layout).backward()
        optimizer.synchronize()
        plain.zero_grad()
        plain(plain.values(rank, step), layout).backward()
        for (name, param), reference, a, b in zip(
            model.named_parameters(), plain.parameters(), model.values(0, step), model.values(1, step), strict=True
        ):
            wide = torch.float32 if param.dtype in (torch.bfloat16, torch.float16) else param.dtype
            mean = (a.to(wide) / 2 + b.to(wide) / 2).to(param.dtype)
            if not torch.equal(param.grad, mean) or (step and name != "gap" and param.grad.stride() != reference.grad.stride()):
                wrong.append((name, step, param.grad.stride(), reference.grad.stride()))
        optimizer.step()
        optimizer.zero_grad()
    return wrong


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("layout", ["own", "other"])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("strategy", SPLITS)
def test_every_kind_of_dense_gradient_is_averaged_exactly(strategy: str, overlap: bool, layout: str, accumulate: int) -> None:
    assert pool.run(2, zoo, strategy, overlap, layout, accumulate) == [[], []]


def messages(rank: int, world_size: int) -> tuple[int, int, list[str]]:
    """Segments, collectives and wire dtypes of a step with two dtypes in one segment."""
    model = nn.ParameterList([torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4)])
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy="single")
    for _ in range(2):
        with collectives() as log:
            sum(p.float().sum() for p in model).backward()
            optimizer.step()
        optimizer.zero_grad()
    return len(optimizer.segments), len(log), sorted(c.dtype for c in optimizer.recorder.iterations[-1].collectives)


def test_a_segment_of_two_dtypes_is_two_messages() -> None:
    assert pool.run(2, messages) == [(1, 2, ["float32", "float32"])] * 2


# -- sparse -----------------------------------------------------------------------------------------------------------------


class Sparse(nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.EmbeddingBag(20, 4, mode="sum", sparse=sparse)
        self.head = nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.embedding(words)).square().mean()


def words(rank: int, step: int) -> Tensor:
    return torch.randint(0, 20, (3, 4), generator=torch.Generator().manual_seed(10 * step + rank))


def sparse_training(rank: int, world_size: int, skip: bool, accumulate: int, strategy: Any) -> tuple[Tensor, bool, Tensor]:
    """Dense version of the weights, and whether the gradient stayed sparse. With `skip` rank 1 looks nothing up in step 1."""
    model = Sparse(sparse=True)
    optimizer = wrapped(model, torch.optim.SGD(model.parameters(), lr=0.5), accumulate=accumulate, strategy=strategy)
    layouts = []
    for step in range(4):
        for micro in range(accumulate):
            if not (skip and rank == 1 and step == 1):
                model(words(rank, step + 50 * micro)).backward()
        optimizer.synchronize()
        layouts.append(model.embedding.weight.grad.is_sparse)
        optimizer.step()
        optimizer.zero_grad()
    return model.embedding.weight.detach(), all(layouts), model.head.weight.detach()


@pytest.mark.parametrize("strategy", SPLITS)
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("skip", [False, True])
def test_sparse_gradients_stay_sparse_and_equal_dense_training(skip: bool, accumulate: int, strategy: str) -> None:
    model = Sparse(sparse=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        for rank in range(1 if skip and step == 1 else 2):
            for micro in range(accumulate):
                (model(words(rank, step + 50 * micro)) / (2 * accumulate)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for embedding, sparse, head in pool.run(2, sparse_training, skip, accumulate, strategy):
        assert sparse
        assert torch.allclose(embedding, model.embedding.weight, rtol=1e-5, atol=1e-6)
        assert torch.allclose(head, model.head.weight, rtol=1e-5, atol=1e-6)


def sparse_bits(rank: int, world_size: int) -> Tensor:
    return sparse_training(rank, world_size, False, 1, "single")[0]


def test_sparse_sums_have_the_same_bits_on_all_ranks() -> None:
    first, *others = pool.run(3, sparse_bits)
    assert all(same_bits(first, other) for other in others)
