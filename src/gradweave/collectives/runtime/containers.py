"""The tensors and the plain values of a nested structure, and replacing the plain ones.

Dicts, lists and tuples (named ones too) are walked; a dict's keys in their order, since ranks match leaves by position.
Everything else that is no tensor is a plain value: it must be picklable to travel.

    found = collect(x);    x = replace(x, the root's values in the order of found.values)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from gradweave.collectives.runtime import wire


@dataclass(frozen=True)
class Found:
    """What a structure holds, in walking order.

    Attributes:
        tensors: its tensors.
        tensor_paths: where each is.
        values: its plain values.
        value_paths: where each is.
    """

    tensors: list[Tensor]
    tensor_paths: list[str]
    values: list[Any]
    value_paths: list[str]

    def describe(self) -> dict[str, list[str]]:
        """What ranks must agree on; plain values themselves may differ."""
        tensors = [wire.describe(t, path) for path, t in zip(self.tensor_paths, self.tensors, strict=True)]
        return {"tensors": tensors, "plain values": self.value_paths}


def collect(x: Any) -> Found:
    """Walk a structure."""
    found = Found([], [], [], [])
    for path, leaf in _walk(x, ""):
        if isinstance(leaf, Tensor):
            found.tensors.append(leaf)
            found.tensor_paths.append(path)
        else:
            found.values.append(leaf)
            found.value_paths.append(path)
    return found


def replace(x: Any, values: Iterable[Any]) -> Any:
    """The structure with new plain values: dicts and lists are changed in place, tuples and bare values are made anew."""
    return _replace(x, iter(values))


def _walk(x: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(x, Mapping):
        for key, value in x.items():
            yield from _walk(value, f"{path}[{key!r}]")
    elif isinstance(x, (list, tuple)):
        for index, value in enumerate(x):
            yield from _walk(value, f"{path}[{index}]")
    else:
        yield path, x


def _replace(x: Any, values: Iterator[Any]) -> Any:
    if isinstance(x, Mapping):
        fresh = {key: _replace(value, values) for key, value in x.items()}
        if isinstance(x, MutableMapping):
            for key, value in fresh.items():
                if x[key] is not value:
                    x[key] = value
            return x
        return fresh
    if isinstance(x, list):
        x[:] = [_replace(value, values) for value in x]
        return x
    if isinstance(x, tuple):
        parts = [_replace(value, values) for value in x]
        if all(new is old for new, old in zip(parts, x, strict=True)):
            return x
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return x if isinstance(x, Tensor) else next(values)
