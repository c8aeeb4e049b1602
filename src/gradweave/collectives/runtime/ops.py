"""Reduction operations: which exist, for which dtypes, and how each travels.

    op        message                                   torch's operation
    average   x / p, divided before the sum             SUM
    sum       x                                         SUM
    max min product                                     MAX MIN PRODUCT
    bool      bytes 0 and 1; sum and max mean "any",    MAX MIN
              product and min mean "all"
    complex   pairs of reals; sum and average only      SUM
    int16, uint16, uint32                               as int32, int32, int64: backends have no narrower sum

Dividing before the sum, not multiplying by 1/p after it, is the one place of averaging in Gradweave.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradweave.errors import ConfigError

OPS = ("sum", "average", "max", "min", "product")
_TORCH_OPS = {
    "sum": dist.ReduceOp.SUM,
    "average": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}
_WIDER = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_CARRIED = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
    torch.complex64, torch.complex128, *_WIDER,
}  # fmt: skip


def check_op(op: Any, x: Tensor, path: str = "") -> None:
    """Whether the operation exists and has a meaning for the dtype.

    Raises:
        ConfigError: it does not.
    """
    at = f" at {path}" if path else ""
    if op not in OPS:
        raise ConfigError(f"op={op!r}", rule=f"op is one of {', '.join(OPS)}", fix='leave it out for "sum"')
    if x.dtype not in _CARRIED:
        raise ConfigError(
            f"{x.dtype}{at} cannot be reduced",
            rule="reductions exist for float16 to float64, bfloat16, complex, bool and integers up to int64",
            fix="cast it first, for example x.to(torch.float32)",
        )
    if op == "average" and not (x.dtype.is_floating_point or x.dtype.is_complex):
        raise ConfigError(
            f'op="average" of {x.dtype}{at}',
            rule="only floating-point and complex values have an average of their own dtype",
            fix='convert with x.float() (or float(n)) first, or use op="sum" and divide by gw.size()',
        )
    if x.dtype.is_complex and op not in ("sum", "average"):
        raise ConfigError(
            f"op={op!r} of {x.dtype}{at}",
            rule="complex values can be summed and averaged",
            fix="reduce torch.view_as_real(x), or x.abs()",
        )


def to_message(flat: Tensor, op: str, peers: int) -> tuple[Tensor, Any]:
    """The message for an own 1-dim tensor (changed in place where possible) and torch's operation."""
    if op == "average":
        flat.div_(peers)
    if flat.dtype is torch.bool:
        return flat.view(torch.uint8), dist.ReduceOp.MAX if op in ("sum", "max") else dist.ReduceOp.MIN
    if flat.dtype.is_complex:
        return torch.view_as_real(flat).view(-1), _TORCH_OPS[op]
    return flat.to(_WIDER.get(flat.dtype, flat.dtype)), _TORCH_OPS[op]


def from_message(message: Tensor, dtype: torch.dtype) -> Tensor:
    """The 1-dim tensor of the values' dtype that a reduced message holds."""
    if dtype is torch.bool:
        return message.view(torch.bool)
    if dtype.is_complex:
        return torch.view_as_complex(message.view(-1, 2))
    return message.to(dtype)
