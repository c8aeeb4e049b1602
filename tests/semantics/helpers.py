"""What the tests of the rules share: small models, their single-process references, a count of collectives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup

import gradweave as gw

COLLECTIVES = [
    name
    for name in vars(ProcessGroup)
    if name.lstrip("_").startswith(
        ("allreduce", "allgather", "all_gather", "broadcast", "reduce", "alltoall", "gather", "scatter")
    )
]


class Given(nn.Module):
    """A model whose gradients are the values that forward gets: one parameter of each size."""

    def __init__(self, *sizes: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.w = nn.ParameterList([torch.zeros(size, dtype=dtype) for size in sizes])

    def forward(self, *values: Tensor) -> Tensor:
        return sum(((w * v).sum() for w, v in zip(self.w, values, strict=True)), torch.zeros((), dtype=self.w[0].dtype))


def mlp(seed: int = 0, width: int = 8, depth: int = 3) -> nn.Sequential:
    """`depth` linear layers with tanh: 2 depth gradients."""
    torch.manual_seed(seed)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())))


def batch(rows: int = 12, width: int = 8, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Inputs and targets, equal on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, width, generator=generator), torch.randn(rows, width, generator=generator)


def part(pair: tuple[Tensor, Tensor], rank: int, world_size: int) -> tuple[Tensor, Tensor]:
    """This rank's equal share of a batch."""
    x, y = pair
    return x.chunk(world_size)[rank], y.chunk(world_size)[rank]


def loss_of(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    """Mean over the batch."""
    return F.mse_loss(model(pair[0]), pair[1])


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    """SGD with momentum, so that a wrong gradient is not forgotten."""
    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)


def wrapped(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> gw.DistributedOptimizer:
    """A distributed optimizer, split so finely that order and boundaries matter."""
    options.setdefault("strategy", "per_gradient")
    return gw.DistributedOptimizer(optimizer or sgd(model), model, **options)


def weights(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def gradients(model: nn.Module) -> list[Tensor | None]:
    """Copies of all gradients."""
    return [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]


def train(model: nn.Module, optimizer: Any, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """An ordinary loop: one step per batch; returns the weights."""
    for pair in pairs:
        loss_of(model, pair).backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def alone(steps: int = 4, model: nn.Module | None = None) -> Tensor:
    """Weights after single-process training of `mlp` (or `model`) on the whole batches."""
    model = model or mlp()
    return train(model, sgd(model), [batch(seed=s) for s in range(steps)])


def together(rank: int, world_size: int, steps: int = 4, **options: Any) -> Tensor:
    """Weights after distributed training of `mlp` on each rank's share of the same batches."""
    model = mlp()
    return train(model, wrapped(model, **options), [part(batch(seed=s), rank, world_size) for s in range(steps)])


def error(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and every bit (no tolerance, NaN equals NaN)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return a.contiguous().view(-1).view(torch.uint8).equal(b.contiguous().view(-1).view(torch.uint8))


@contextlib.contextmanager
def collectives() -> Iterator[list[tuple[str, int]]]:
    """Collect (name, bytes) of every collective that this process starts, on any process group."""
    log: list[tuple[str, int]] = []
    # From the class's dict: getattr would return a function that no longer binds its group.
    originals = {name: vars(ProcessGroup)[name] for name in COLLECTIVES}

    def counting(name: str) -> Any:
        def call(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            log.append((name, sum(t.numel() * t.element_size() for t in _tensors(args[-2] if len(args) > 1 else args[0]))))
            return originals[name].__get__(group)(*args, **kwargs)

        return call

    for name in originals:
        setattr(ProcessGroup, name, counting(name))
    try:
        yield log
    finally:
        for name, original in originals.items():
            setattr(ProcessGroup, name, original)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
