"""Models of the parity tests: small, of many kinds, each with its data, loss and optimizers.

A recipe says which single-process run is the reference:
    full        one forward and backward over the whole batch
    per_micro   one per micro-batch over all ranks' samples: statistics are taken over ranks, but not over micro-batches
    per_rank    one per micro-batch and rank, through one replica per rank: statistics are taken on each rank
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradweave.demo.gpt import GPT, next_byte_loss

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Recipe:
    """How to make and train one kind of model.

    Attributes:
        make: builds the model in float32 (complex64 for "complex"), after the seed has been set.
        data: `data(samples, generator) -> batch`, tensors with the samples in dim 0.
        loss: `loss(model, batch)`, a mean over the samples.
        reference: see the module.
        optimizers: names in `OPTIMIZERS` that can train it.
    """

    make: Callable[[], nn.Module]
    data: Callable[[int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    reference: str = "full"
    optimizers: tuple[str, ...] = ("sgd", "adamw")


# AdamW divides by sqrt(v) + eps. Some gradients are zero but for rounding (the bias of a key, a bias before batch-norm),
# and a tiny eps would turn that noise into full steps.
OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, eps=1e-3, foreach=True),
    "plain_sgd": lambda params: torch.optim.SGD(params, lr=0.5),
}


class ConvNet(nn.Module):
    """Two convolutions with batch-norm and a linear head; `norm` makes the normalisation of a number of channels."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv_in, self.norm_in = nn.Conv2d(2, 4, 3, padding=1), norm(4)
        self.conv_out, self.norm_out = nn.Conv2d(4, 6, 3, padding=1, bias=False), norm(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 2, H, W) to (N, 3)."""
        h = torch.relu(self.norm_in(self.conv_in(x)))
        h = torch.relu(self.norm_out(self.conv_out(h)))
        out: Tensor = self.head(h.mean(dim=(2, 3)))
        return out


class _SumOverRanks(torch.autograd.Function):
    """All-reduce on the default group whose gradient is an all-reduce."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _SumOverRanks.forward(ctx, gradients[0].contiguous())


class SyncedBatchNorm(nn.BatchNorm2d):
    """Batch-norm with the statistics of all ranks' samples, on any device.

    torch's SyncBatchNorm refuses CPU tensors. This one sums (mean, mean of squares) over ranks, so that backward holds
    collectives of the user's between ours. `ranks` = 1 is plain batch-norm.
    """

    ranks = 1

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (N, C, H, W) over N, H, W and the ranks."""
        moments = torch.stack([x.mean(dim=(0, 2, 3)), x.square().mean(dim=(0, 2, 3))])
        if self.ranks > 1:
            moments = _SumOverRanks.apply(moments) / self.ranks
        mean, variance = moments[0], moments[1] - moments[0].square()
        scale = self.weight * torch.rsqrt(variance + self.eps)
        return (x - mean[:, None, None]) * scale[:, None, None] + self.bias[:, None, None]


class Recurrent(nn.Module):
    """A two-layer LSTM whose last state is regressed."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, 3) to (N, 2)."""
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


class SparseText(nn.Module):
    """Mean of looked-up rows, then linear; the embedding's gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 5, sparse=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T) to (N, 3)."""
        out: Tensor = self.head(self.embedding(x).mean(dim=1))
        return out


class ModReLU(nn.Module):
    """z -> z tanh(|z|) / |z|: a nonlinearity of complex numbers that keeps the phase."""

    def forward(self, z: Tensor) -> Tensor:
        """Elementwise."""
        size = (z.real.square() + z.imag.square() + 1e-3).sqrt()
        return z * (torch.tanh(size) / size)


def _mlp(kind: torch.dtype, nonlinearity: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 12, dtype=kind), nonlinearity, nn.Linear(12, 12, dtype=kind), nonlinearity, nn.Linear(12, 2, dtype=kind)
    )


def _regression(*shape: int, kind: torch.dtype = torch.float32) -> Callable[[int, torch.Generator], Batch]:
    def data(samples: int, generator: torch.Generator) -> Batch:
        x = torch.randn(samples, *shape, generator=generator, dtype=kind)
        return x, torch.randn(samples, 2, generator=generator, dtype=kind)

    return data


def _squared_error(model: nn.Module, batch: Batch) -> Tensor:
    x, target = batch
    difference = model(x) - target
    return (difference * difference.conj()).real.mean() if difference.is_complex() else difference.square().mean()


def _images(samples: int, generator: torch.Generator) -> Batch:
    return torch.randn(samples, 2, 5, 5, generator=generator), torch.randint(0, 3, (samples,), generator=generator)


def _tokens(vocabulary: int, length: int, classes: int = 0) -> Callable[[int, torch.Generator], Batch]:
    def data(samples: int, generator: torch.Generator) -> Batch:
        x = torch.randint(0, vocabulary, (samples, length), generator=generator)
        return (x, torch.randint(0, classes, (samples,), generator=generator)) if classes else (x,)

    return data


def _cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


RECIPES: dict[str, Recipe] = {
    "mlp": Recipe(lambda: _mlp(torch.float32, nn.Tanh()), _regression(5), _squared_error),
    "complex": Recipe(lambda: _mlp(torch.complex64, ModReLU()), _regression(5, kind=torch.complex64), _squared_error),
    "batchnorm": Recipe(lambda: ConvNet(nn.BatchNorm2d), _images, _cross_entropy, reference="per_rank"),
    "syncbn": Recipe(lambda: ConvNet(SyncedBatchNorm), _images, _cross_entropy, reference="per_micro"),
    "gpt": Recipe(
        lambda: GPT(vocabulary=17, context=6, width=8, heads=2, layers=2), _tokens(17, 7), lambda m, b: next_byte_loss(m, b[0])
    ),
    "lstm": Recipe(Recurrent, _regression(4, 3), _squared_error),
    "sparse": Recipe(SparseText, _tokens(40, 4, classes=3), _cross_entropy, optimizers=("plain_sgd",)),
}
