"""Any tensors as one message of bytes, and back; and how dim 0 is divided among peers.

What only moves (gather, all-to-all, broadcast) does not care for dtypes: tensors of all dtypes on a device travel as one
message. Each tensor starts at a multiple of 16 bytes, so that it can be viewed in its own dtype at the other end.

Cost: one copy into the message; at most 15 bytes of padding per tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from gradweave.errors import ConfigError

_ALIGN_BYTES = 16
Shape = Sequence[int]


def as_bytes(x: Tensor) -> Tensor:
    """A tensor's bytes as a 1-dim uint8 tensor; a view where the tensor is contiguous."""
    # as_strided: a contiguous tensor may still have odd strides in dims of size 1, which a dtype's view refuses.
    return x.contiguous().as_strided((x.numel(),), (1,)).view(torch.uint8)


def aligned(n_bytes: int) -> int:
    """Bytes rounded up to the alignment.

    Example:
        >>> aligned(17)
        32
    """
    return -(-n_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def length(shapes: Sequence[Shape], dtypes: Sequence[torch.dtype]) -> int:
    """Bytes of the message that holds tensors of these shapes and dtypes."""
    return sum(aligned(prod(shape) * dtype.itemsize) for shape, dtype in zip(shapes, dtypes, strict=True))


def pack(tensors: Sequence[Tensor], message: Tensor) -> None:
    """Write the tensors into a message of at least `length` bytes."""
    start = 0
    for x in tensors:
        source = as_bytes(x)
        message[start : start + source.numel()] = source
        start += aligned(source.numel())


def unpack(message: Tensor, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Views of a message, with these shapes and dtypes."""
    views, start = [], 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        n_bytes = prod(shape) * dtype.itemsize
        views.append(message[start : start + n_bytes].view(dtype).view(tuple(shape)))
        start += aligned(n_bytes)
    return views


def describe(x: Tensor, path: str, drop_dim0: bool = False) -> str:
    """What ranks must agree on for one tensor; without dim 0 on request.

    Example:
        >>> describe(torch.ones(2, 3), "['w']")
        "['w'] float32 [2, 3]"
    """
    shape = ["any", *x.shape[1:]] if drop_dim0 and x.ndim else list(x.shape)
    layout = "" if x.layout is torch.strided else f" {str(x.layout).removeprefix('torch.')}"
    dims = ", ".join(map(str, shape))
    return f"{path} {str(x.dtype).removeprefix('torch.')} [{dims}]{layout}".strip()


def by(key: Callable[[Tensor], object], tensors: Sequence[Tensor]) -> list[list[int]]:
    """Indices of the tensors grouped by a key, in order of first appearance."""
    groups: dict[object, list[int]] = {}
    for index, x in enumerate(tensors):
        groups.setdefault(key(x), []).append(index)
    return list(groups.values())


def shares(rows: int, peers: int) -> list[int]:
    """Rows of each peer: equal, the first peers one more when they do not divide.

    Example:
        >>> shares(7, 3)
        [3, 2, 2]
    """
    return [rows // peers + (peer < rows % peers) for peer in range(peers)]


def require_dense(tensors: Sequence[Tensor], paths: Sequence[str], what: str) -> None:
    """Refuse sparse tensors where they have no meaning.

    Raises:
        ConfigError: a tensor is not strided.
    """
    for x, path in zip(tensors, paths, strict=True):
        if x.layout is not torch.strided:
            raise ConfigError(
                f"a tensor of layout {x.layout}" + (f" at {path}" if path else ""),
                rule=f"{what} takes dense tensors",
                fix="convert it with x.to_dense()",
            )


def require_dim0(tensors: Sequence[Tensor], paths: Sequence[str], what: str) -> None:
    """Refuse numbers and 0-dim tensors where dim 0 is divided.

    Raises:
        ConfigError: a tensor has no dim 0.
    """
    for x, path in zip(tensors, paths, strict=True):
        if x.ndim == 0:
            raise ConfigError(
                "a number or 0-dim tensor" + (f" at {path}" if path else ""),
                rule=f"{what} divides dim 0 among the peers",
                fix="give it a dimension with x.reshape(1), or use gw.allreduce",
            )
