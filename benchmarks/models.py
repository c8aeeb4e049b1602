"""The models that are timed: a GPT and a residual conv net, each with some 40 MB of gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradweave.demo.gpt import GPT, next_byte_loss

Loss = Callable[[nn.Module], Tensor]


class Residual(nn.Module):
    """Two 3x3 convolutions with batch-norm and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) to (N, outputs, H/stride, W/stride)."""
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


def conv_net() -> nn.Module:
    """A residual net like ResNet-18 for 32x32 images: 11 M parameters."""
    stages = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    blocks = [Residual(*stage) for stage in stages]
    stem = nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def gpt() -> nn.Module:
    """A GPT of 6 layers, width 384: 11 M parameters."""
    return GPT(vocabulary=256, context=128, width=384, heads=6, layers=6)


def gpt_loss(seed: int) -> Loss:
    """Next-byte loss on fixed random bytes."""
    tokens = torch.randint(0, 256, (4, 129), generator=torch.Generator().manual_seed(seed))
    return lambda model: next_byte_loss(model, tokens)


def conv_loss(seed: int) -> Loss:
    """Cross-entropy on fixed random images."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = torch.randn(8, 3, 32, 32, generator=generator), torch.randint(0, 10, (8,), generator=generator)
    return lambda model: F.cross_entropy(model(images), labels)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Loss]]] = {
    "gpt": (gpt, gpt_loss),
    "conv": (conv_net, conv_loss),
}
