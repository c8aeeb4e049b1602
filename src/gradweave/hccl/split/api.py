"""HCCL's gradient splitting calls, with its names, argument names and limits.

    from hccl.split.api import set_split_strategy_by_idx            becomes
    from gradweave.hccl.split.api import set_split_strategy_by_idx

They set the same strategies as the calls of `gradweave.split.api`; the one difference is HCCL's limit of eight segments.
Importing this module changes nothing. HCCL's default, 96.54 % / 3.46 %, is what `reset_split_strategy` of this module returns
a group to; a script that makes no call and wants it passes `strategy="hccl_default"` to its wrapper.

Source: Huawei, "set_split_strategy_by_idx" and "Adjusting Gradient Splitting Strategy".
"""

from __future__ import annotations

from collections.abc import Sequence

from gradweave.errors import SplitError
from gradweave.split import registry
from gradweave.split.api import get_split_strategy, member_group
from gradweave.split.strategy import SplitStrategy

__all__ = [
    "MAX_SEGMENTS",
    "get_split_strategy",
    "reset_split_strategy",
    "set_split_strategy_by_idx",
    "set_split_strategy_by_size",
]

MAX_SEGMENTS = 8


def set_split_strategy_by_idx(idxList: Sequence[int], group: str = "hccl_world_group") -> None:  # noqa: N803 - HCCL's name
    """Split the gradients of a group by index, into at most eight segments.

    Args:
        idxList: the last gradient index of each segment: non-negative, ascending, the last one the largest index n-1.
        group: the group's name.

    Raises:
        SplitError: malformed, more than eight segments, or it does not fit a live wrapper; nothing is changed then.
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> set_split_strategy_by_idx([20, 100, 159])
        >>> get_split_strategy().strategy.describe()
        'by index: last indices 20, 100, 159'
        >>> reset_split_strategy()
    """
    _set(group, SplitStrategy.by_idx(idxList))


def set_split_strategy_by_size(dataSizeList: Sequence[float], group: str = "hccl_world_group") -> None:  # noqa: N803
    """Split the gradients of a group by percent of the bytes, into at most eight segments.

    Args:
        dataSizeList: percent of each segment, above 0, summing to 100.
        group: the group's name.

    Raises:
        SplitError: malformed, or more than eight segments.
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> set_split_strategy_by_size([60, 20, 20])
        >>> get_split_strategy().strategy.describe()
        'by size: 60 %, 20 %, 20 %'
        >>> reset_split_strategy()
    """
    _set(group, SplitStrategy.by_size(dataSizeList))


def reset_split_strategy(group: str = "hccl_world_group") -> None:
    """Return a group to HCCL's default, 96.54 % / 3.46 % of the bytes.

    `gradweave.reset_split_strategy` returns it to the native default instead.

    Raises:
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> reset_split_strategy()
        >>> get_split_strategy().strategy == SplitStrategy.hccl_default()
        True
    """
    _set(group, SplitStrategy.hccl_default())


def _set(group: str, strategy: SplitStrategy) -> None:
    name = member_group(group)
    if len(strategy.values) > MAX_SEGMENTS:
        raise SplitError(
            f"the list asks for {len(strategy.values)} segments",
            rule=f"HCCL splits into at most {MAX_SEGMENTS} segments",
            fix="give a shorter list, or call the function of the same name in gradweave, which has no limit",
            group=name,
        )
    registry.set_(name, strategy)
