"""Names for the parameters of an optimizer, from the model or from pairs, in registration order."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from typing import Any

import torch

from gradweave.errors import ConfigError
from gradweave.sync.options import EngineOptions

Named = list[tuple[str, torch.nn.Parameter]]


def named_parameters_of(source: Any) -> Named:
    """Pairs of name and parameter from a Module, a `named_parameters()` iterator or a list of pairs.

    Example:
        >>> [name for name, _ in named_parameters_of(torch.nn.Linear(2, 1))]
        ['weight', 'bias']
    """
    if isinstance(source, torch.nn.Module):
        return list(source.named_parameters())
    try:
        pairs = [(name, param) for name, param in source]
    except (TypeError, ValueError):
        raise ConfigError(
            f"{type(source).__name__} gives no pairs of name and parameter",
            rule="the second argument is the model, or model.named_parameters()",
            fix="pass the model",
        ) from None
    for name, param in pairs:
        if not isinstance(name, str) or not isinstance(param, torch.Tensor):
            raise ConfigError(
                f"({type(name).__name__}, {type(param).__name__}) is not a pair of name and parameter",
                rule="the second argument is the model, or model.named_parameters()",
                fix="pass model.named_parameters(), not model.parameters()",
            )
    return pairs


def optimizer_parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """All parameters of an optimizer, group by group."""
    return [param for group in optimizer.param_groups for param in group["params"]]


def select(optimizer: torch.optim.Optimizer, named: Named) -> Named:
    """The named parameters that the optimizer updates; ConfigError for one that has no name."""
    owned = {id(param): param for param in optimizer_parameters(optimizer)}
    chosen = [(name, param) for name, param in named if id(param) in owned]
    unnamed = owned.keys() - {id(param) for _, param in chosen}
    if unnamed:
        shapes = ", ".join(str(tuple(owned[key].shape)) for key in list(unnamed)[:3])
        raise ConfigError(
            f"{len(unnamed)} of {len(owned)} parameters of the optimizer are not among the named ones (shapes {shapes})",
            rule="every parameter that the optimizer updates has a name",
            fix="pass the model that the optimizer was made for; after model.to(device) make the optimizer again",
        )
    return chosen


class Places:
    """Where a model keeps the parameters that are trained: to notice that one, or a layer with some, was replaced.

    Args:
        model: the model.
        known: ids of the parameters that count.
    """

    def __init__(self, model: torch.nn.Module, known: set[int]) -> None:
        self._kept: list[tuple[str, dict[str, Any], str, object]] = []
        for prefix, module in model.named_modules():
            for name, param in module._parameters.items():
                if param is not None and id(param) in known:
                    self._kept.append((f"{prefix}.{name}".lstrip("."), module._parameters, name, param))
            for name, child in module._modules.items():
                if child is not None and any(id(param) in known for param in child.parameters()):
                    self._kept.append((f"{prefix}.{name}".lstrip("."), module._modules, name, child))

    def replaced(self) -> list[str]:
        """Names of parameters and layers whose place holds another one now (a new head, `load_state_dict(assign=True)`)."""
        return [full for full, place, name, param in self._kept if place.get(name) is not param]


def warn_if_compiled_whole(model: torch.nn.Module, options: EngineOptions) -> None:
    """Warn about a model compiled as one graph: its gradients all come at the end of backward, so nothing can overlap."""
    # Whoever has compiled a model has imported torch._dynamo; importing it here would cost everybody else seconds and memory.
    dynamo = sys.modules.get("torch._dynamo")
    whole = (dynamo and isinstance(model, dynamo.OptimizedModule)) or getattr(model, "_compiled_call_impl", None) is not None
    if whole and options.overlap:
        warnings.warn(
            f"{options.label}: the model is compiled as a whole, so its gradients all arrive when backward ends and no "
            "reduction overlaps it; compile it block by block (for block in model.blocks: block.compile()) to overlap",
            stacklevel=4,
        )


def find_tensors(value: Any) -> Iterable[torch.Tensor]:
    """All tensors inside nested lists, tuples, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from find_tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from find_tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from find_tensors(getattr(value, field, None))
