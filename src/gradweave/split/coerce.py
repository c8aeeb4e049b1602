"""What the `strategy=` argument of the wrappers accepts.

    None                                  the group's strategy from the registry, or the default
    SplitStrategy                         itself
    "default", "hccl_default",
    "single", "per_gradient"              the constructor of that name
    a path ending in .json, a PathLike    a plan file, by names
    a list of integers                    by index

The wrappers also take "auto" and `Auto(...)`, which `auto_of` recognises: the live tuner chooses.

Anything else is refused with the list above.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from gradweave.errors import ConfigError
from gradweave.split.checks import show
from gradweave.split.plan import Plan
from gradweave.split.planfile import load_plan
from gradweave.split.strategy import SplitStrategy

_NAMED: dict[str, Callable[[], SplitStrategy]] = {
    "default": SplitStrategy.default,
    "hccl_default": SplitStrategy.hccl_default,
    "single": SplitStrategy.single,
    "per_gradient": SplitStrategy.per_gradient,
}
_RULE = (
    f"strategy is a SplitStrategy, one of 'auto', {', '.join(map(repr, _NAMED))}, gw.Auto(...), a plan file's path (.json) "
    "or a list of indices"
)


def plan_of(value: object) -> Plan | None:
    """The plan of a plan file that a user passed as `strategy=`; None for everything else.

    A wrapper checks it against its gradients, group size and backend (`Plan.check`).

    Raises:
        PlanFileError: the file cannot be read.
    """
    if isinstance(value, os.PathLike) or (isinstance(value, str) and value.endswith(".json")):
        return load_plan(value)
    return None


def as_strategy(value: object) -> SplitStrategy | None:
    """Turn what a user passed as `strategy=` into a strategy; None stays None.

    Raises:
        ConfigError: nothing of the kinds above.
        SplitError: a malformed list of indices.
        PlanFileError: a plan file that cannot be read.

    Example:
        >>> as_strategy([20, 100, 159]) == SplitStrategy.by_idx([20, 100, 159])
        True
        >>> as_strategy("single").describe()
        'single: all gradients in one segment'
    """
    if value is None or isinstance(value, SplitStrategy):
        return value
    if isinstance(value, str) and value in _NAMED:
        return _NAMED[value]()
    plan = plan_of(value)
    if plan is not None:
        return plan.strategy()
    if isinstance(value, (list, tuple, range)):
        return SplitStrategy.by_idx(value)
    raise ConfigError(f"strategy={show(value)} is not a split strategy", rule=_RULE, fix="leave strategy=None for the default")
