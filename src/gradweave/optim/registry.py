"""Which wrapper reduces which parameter: two wrappers on one parameter would reduce it twice.

The entry lies in the metadata of the parameter's gradient accumulator, which the engine keeps alive as long as it hangs on
it: it is neither copied nor pickled with the parameter.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from gradweave.errors import ConfigError
from gradweave.world import names

_KEY = "gradweave.wrapper"
_numbers: dict[str, itertools.count[int]] = {}
names.on_reset(_numbers.clear)


def next_label(kind: str) -> str:
    """`optimizer0`, `optimizer1`, ... in the order of construction, so that labels agree across ranks.

    Example:
        >>> next_label("doctest")
        'doctest0'
    """
    return f"{kind}{next(_numbers.setdefault(kind, itertools.count()))}"


def owner_of(param: torch.Tensor) -> Any:
    """The live wrapper that reduces this parameter's gradient, or None."""
    if not param.requires_grad or not param.is_leaf:
        return None
    reference = get_gradient_edge(param).node.metadata.get(_KEY)
    owner = reference() if isinstance(reference, weakref.ref) else None
    engine = getattr(owner, "_attached", None) or getattr(owner, "__dict__", {}).get("_engine")
    return owner if engine is not None and not engine.closed else None


def check_free(wrapper: Any, named: Iterable[tuple[str, torch.nn.Parameter]], label: str) -> None:
    """Make sure that no live wrapper but `wrapper` reduces one of these parameters.

    Raises:
        ConfigError: another does.
    """
    for name, param in named:
        other = owner_of(param)
        if other is not None and other is not wrapper:
            raise ConfigError(
                f"{label}: parameter {name!r} is reduced by another wrapper already",
                rule="one wrapper reduces a parameter",
                fix="use DistributedOptimizer or DistributedDataParallel, not both; close() a wrapper that is no longer used",
            )


def claim(wrapper: Any, named: Iterable[tuple[str, torch.nn.Parameter]]) -> None:
    """Enter `wrapper` as the one that reduces these parameters; its engine must hang on them already."""
    for _, param in named:
        if param.requires_grad:
            get_gradient_edge(param).node.metadata[_KEY] = weakref.ref(wrapper)
