"""Which gradients travel together: strategies, the registry by group, the segment result, plan files. Pure Python."""

from gradweave.split.api import (
    get_split_strategy,
    reset_split_strategy,
    set_split_strategy_by_bytes,
    set_split_strategy_by_idx,
    set_split_strategy_by_size,
)
from gradweave.split.auto import Auto, auto_of
from gradweave.split.coerce import as_strategy, plan_of
from gradweave.split.plan import Plan, model_signature
from gradweave.split.planfile import load_plan, save_plan
from gradweave.split.report import SplitResult
from gradweave.split.strategy import SplitStrategy

__all__ = [
    "Auto",
    "Plan",
    "SplitResult",
    "SplitStrategy",
    "as_strategy",
    "auto_of",
    "get_split_strategy",
    "load_plan",
    "model_signature",
    "plan_of",
    "reset_split_strategy",
    "save_plan",
    "set_split_strategy_by_bytes",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
]
