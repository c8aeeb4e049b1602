"""Gradweave: gradients of distributed training in chosen segments, hidden behind the backward pass.

    import gradweave as gw

Names are imported when they are first used, so that the parts that need no torch (splits, plans, traces, reports) work on a
machine without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradweave._version import __version__

if TYPE_CHECKING:
    from gradweave.collectives import allgather, allreduce, alltoall, barrier, broadcast, reduce_scatter
    from gradweave.errors import (
        CollectiveError,
        ConfigError,
        GradweaveError,
        GroupError,
        MismatchError,
        MissingDependencyError,
        PlanFileError,
        SplitError,
        StateError,
        TraceError,
    )
    from gradweave.model import GradientInfo, Segment, Trace
    from gradweave.optim import DistributedDataParallel, DistributedOptimizer, clip_grad_norm_, clip_grad_value_
    from gradweave.split import (
        Auto,
        SplitStrategy,
        get_split_strategy,
        load_plan,
        reset_split_strategy,
        save_plan,
        set_split_strategy_by_bytes,
        set_split_strategy_by_idx,
        set_split_strategy_by_size,
    )
    from gradweave.world import init, is_initialized, local_rank, new_group, rank, shutdown, size

__all__ = [
    "Auto",
    "CollectiveError",
    "ConfigError",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "GradientInfo",
    "GradweaveError",
    "GroupError",
    "MismatchError",
    "MissingDependencyError",
    "PlanFileError",
    "Segment",
    "SplitError",
    "SplitStrategy",
    "StateError",
    "Trace",
    "TraceError",
    "__version__",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "clip_grad_norm_",
    "clip_grad_value_",
    "get_split_strategy",
    "init",
    "is_initialized",
    "load_plan",
    "local_rank",
    "new_group",
    "rank",
    "reduce_scatter",
    "reset_split_strategy",
    "save_plan",
    "set_split_strategy_by_bytes",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
    "shutdown",
    "size",
]

_HOMES = {
    "collectives": ("allgather", "allreduce", "alltoall", "barrier", "broadcast", "reduce_scatter"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "model": ("GradientInfo", "Segment", "Trace"),
    "optim": ("DistributedDataParallel", "DistributedOptimizer", "clip_grad_norm_", "clip_grad_value_"),
    "split": ("Auto", "SplitStrategy", "load_plan", "save_plan", *(name for name in __all__ if "_split_strategy" in name)),
    "world": ("init", "is_initialized", "local_rank", "new_group", "rank", "shutdown", "size"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name, or a package of Gradweave, on first use.

    Raises:
        AttributeError: there is no such name.
        MissingDependencyError: the name needs torch, which is not installed.
    """
    try:
        if name in _HOME_OF:
            value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
            globals()[name] = value
            return value
        if not name.startswith("_"):
            return importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        _explain(name, error)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _explain(name: str, error: ImportError) -> None:
    """Turn a failed import into the error that helps; return when the name simply does not exist."""
    from gradweave.errors import MissingDependencyError

    if isinstance(error, MissingDependencyError):
        raise error
    if error.name == "torch" or str(error.name).startswith("torch."):
        raise MissingDependencyError(
            f"gradweave.{name} needs torch, which is not installed",
            rule="training needs torch; splits, plans, traces and reports do not",
            fix="pip install 'torch==2.13.0'",
        ) from error
    if name in _HOME_OF or error.name != f"{__name__}.{name}":
        raise error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
