"""Division before the sum, by a true division on every device."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def divisor_for(value: Any, tensor: Tensor) -> Any:
    """The divisor as torch needs it for a true division: CUDA turns division by a number into a product with its inverse.

    Example:
        >>> divisor_for(3, torch.zeros(1))
        3
    """
    return value if tensor.device.type == "cpu" or isinstance(value, Tensor) else _device_scalar(value, tensor.device)


@functools.lru_cache(maxsize=64)
def _device_scalar(value: float, device: torch.device) -> Tensor:
    return torch.tensor(float(value), device=device)
