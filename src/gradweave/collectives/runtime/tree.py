"""Structures of tensors and numbers as a flat list of leaves, and back.

Dicts, lists, tuples, named tuples and what torch's pytree registry knows may be nested. Python numbers travel as 1-element
tensors (bool, int64, float64, complex128) and come back as numbers.

    tree = Tree.of(x, device);   tree.tensors -> collective -> tree.rebuild(results)

Cost: no communication; one small tensor per number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from gradweave.collectives.runtime import wire
from gradweave.errors import ConfigError

_NUMBER_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


@dataclass(frozen=True)
class Tree:
    """A flattened structure.

    Attributes:
        tensors: one per leaf, the user's own; a number's is 0-dim.
        kinds: per leaf: Tensor, or the number's type.
        paths: per leaf: where it is, such as "['weights'][0]"; "" for a bare leaf.
        spec: torch's description of the containers.
    """

    tensors: tuple[Tensor, ...]
    kinds: tuple[type, ...]
    paths: tuple[str, ...]
    spec: Any

    @classmethod
    def of(cls, x: Any, device: torch.device | None = None) -> Tree:
        """Flatten `x`; numbers become tensors on `device`.

        Raises:
            ConfigError: a leaf is neither a tensor nor a number.
        """
        pairs, spec = pytree.tree_flatten_with_path(x)
        paths = tuple(pytree.keystr(path) for path, _ in pairs)
        tensors = tuple(_as_tensor(leaf, path, device) for path, (_, leaf) in zip(paths, pairs, strict=True))
        kinds = tuple(Tensor if isinstance(leaf, Tensor) else type(leaf) for _, leaf in pairs)
        return cls(tensors, kinds, paths, spec)

    def describe(self, drop_dim0: bool = False) -> list[str]:
        """What ranks must agree on: path, dtype and shape of each leaf (without dim 0 on request)."""
        return [wire.describe(t, path, drop_dim0) for path, t in zip(self.paths, self.tensors, strict=True)]

    def rebuild(self, results: Sequence[Any]) -> Any:
        """The structure with `results` as leaves; a 0-dim result for a number becomes a number again."""
        leaves = [
            value if kind is Tensor or not isinstance(value, Tensor) else _as_number(value, kind)
            for value, kind in zip(results, self.kinds, strict=True)
        ]
        return pytree.tree_unflatten(leaves, self.spec)


def _as_tensor(leaf: Any, path: str, device: torch.device | None) -> Tensor:
    if isinstance(leaf, Tensor):
        return leaf
    if type(leaf) in _NUMBER_DTYPES:
        return torch.tensor(leaf, dtype=_NUMBER_DTYPES[type(leaf)], device=device)
    raise ConfigError(
        f"{type(leaf).__name__} {leaf!r}"[:120] + (f" at {path}" if path else ""),
        rule="collectives carry tensors and Python numbers, in nested dicts, lists and tuples",
        fix="convert it to a tensor, or send objects with torch.distributed.all_gather_object",
    )


def _as_number(value: Tensor, kind: type) -> Any:
    return value.item() if value.ndim == 0 else value.tolist()
