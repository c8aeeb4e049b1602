"""The calls that set how the gradients of a group are split.

They may come before the wrappers are built or during training, and every member of the group has to make the same call. An
iteration begins when the step before it has ended; a strategy set during it applies from the next iteration on (from the one
after that when the call comes between backward() and step() and the last segment is on its way already). Wrappers with an
explicit `strategy=` are not touched.

    set_split_strategy_by_idx([20, 100, 159])      [0, 20] [21, 100] [101, 159]
    set_split_strategy_by_size([60, 20, 20])       60 %, 20 %, 20 % of the bytes, at the nearest gradients
    set_split_strategy_by_bytes(25 << 20)          segments of about 25 MiB

`group` is a name, a ProcessGroup or a DeviceMesh. Source: Huawei, "Adjusting Gradient Splitting Strategy".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gradweave.errors import GroupError
from gradweave.split import registry
from gradweave.split.checks import show
from gradweave.split.report import SplitResult
from gradweave.split.strategy import SplitStrategy
from gradweave.world import names


def set_split_strategy_by_idx(idx_list: Sequence[int], group: Any = "world") -> None:
    """Split the gradients of a group by index.

    Args:
        idx_list: the last gradient index of each segment: non-negative, ascending, the last one the largest index n-1.
            Indices follow the order in which backward generates the gradients.
        group: the group's name, or a ProcessGroup or DeviceMesh.

    Raises:
        SplitError: malformed, or it does not fit a live wrapper; nothing is changed then.
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> set_split_strategy_by_idx([20, 100, 159])
        >>> get_split_strategy().strategy.values
        (20, 100, 159)
        >>> reset_split_strategy()
    """
    registry.set_(member_group(group), SplitStrategy.by_idx(idx_list))


def set_split_strategy_by_size(sizes: Sequence[float], group: Any = "world") -> None:
    """Split the gradients of a group by percent of the bytes.

    Args:
        sizes: percent of each segment, above 0, summing to 100 within 0.0001.
        group: the group's name, or a ProcessGroup or DeviceMesh.

    Raises:
        SplitError: malformed.
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> set_split_strategy_by_size([60, 20, 20])
        >>> get_split_strategy().strategy.describe()
        'by size: 60 %, 20 %, 20 %'
        >>> reset_split_strategy()
    """
    registry.set_(member_group(group), SplitStrategy.by_size(sizes))


def set_split_strategy_by_bytes(cap_bytes: int | Sequence[int], group: Any = "world") -> None:
    """Split the gradients of a group by bytes: segment k closes when its bytes reach the k-th cap; the last cap repeats.

    Args:
        cap_bytes: bytes above 0, or a list of them.
        group: the group's name, or a ProcessGroup or DeviceMesh.

    Raises:
        SplitError: malformed.
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> set_split_strategy_by_bytes([1 << 20, 25 << 20])
        >>> reset_split_strategy()
    """
    registry.set_(member_group(group), SplitStrategy.by_bytes(cap_bytes))


def get_split_strategy(group: Any = "world") -> SplitResult:
    """Return the strategy of a group and, once a wrapper has applied it, its segments.

    Raises:
        GroupError: the group is unknown, or the caller's rank is not in it.

    Example:
        >>> get_split_strategy()  # doctest: +ELLIPSIS
        <SplitResult of group 'world': default: ...; not applied yet>
    """
    return registry.result(member_group(group))


def reset_split_strategy(group: Any = "world") -> None:
    """Return the wrappers of a group to their default from the next iteration on.

    Raises:
        GroupError: the group is unknown, or the caller's rank is not in it.
    """
    registry.reset(member_group(group))


def member_group(group: Any) -> str:
    """Return the name of a group that the caller belongs to.

    Raises:
        GroupError: the group is unknown, or the caller's rank is not in it.
    """
    if group is None or isinstance(group, str):
        return names.require_member(names.WORLD if group is None else group).name
    if "torch" not in sys.modules:
        raise GroupError(
            f"{show(group)} is not a group",
            rule="a group is a name, a ProcessGroup or a DeviceMesh of one axis",
            fix='pass group="world", or a name made with gw.new_group',
        )
    # Imported here, because only programs that hold a ProcessGroup or a DeviceMesh need torch.
    from gradweave.world.groups import as_group

    return str(as_group(group).name)
