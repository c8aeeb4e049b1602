"""Gradient clipping that is right in every mode: the whole gradient, never a segment or a shard.

    synchronize  ->  unscale  ->  clip  ->  step

Clipping first finishes the reductions of the wrappers that own the parameters, then does what torch's functions do.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gradweave.optim.registry import owner_of


def _synchronized(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    params = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    owners = {id(owner): owner for owner in map(owner_of, params) if owner is not None}
    for owner in owners.values():
        finish = getattr(owner, "synchronize", None)
        if finish is not None:
            finish()
    return params


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Tensor:
    """Scale the reduced gradients so that their total norm is at most `max_norm`; finishes reductions first.

    Args:
        parameters: whose gradients are clipped, in place.
        max_norm: the largest norm allowed.
        norm_type: the p of the p-norm; `inf` for the largest magnitude.
        error_if_nonfinite: raise when the norm is NaN or infinite.

    Returns:
        The total norm before clipping (0-dim), equal on all ranks.

    Example:
        >>> import torch
        >>> p = torch.nn.Parameter(torch.zeros(2)); p.grad = torch.tensor([3.0, 4.0])
        >>> clip_grad_norm_([p], 1.0)
        tensor(5.)
    """
    return torch.nn.utils.clip_grad_norm_(_synchronized(parameters), max_norm, norm_type, error_if_nonfinite)


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Clamp every element of the reduced gradients to [-clip_value, clip_value]; finishes reductions first.

    Example:
        >>> import torch
        >>> p = torch.nn.Parameter(torch.zeros(2)); p.grad = torch.tensor([3.0, -4.0])
        >>> clip_grad_value_([p], 1.0); p.grad
        tensor([ 1., -1.])
    """
    torch.nn.utils.clip_grad_value_(_synchronized(parameters), clip_value)
