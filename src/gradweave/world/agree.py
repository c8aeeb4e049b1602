"""Agreement checks: do all ranks hold the same value?

Gloo returns normally, with wrong numbers, from an all-reduce of shapes [2] and [3]; a split strategy that differs hangs. So
what must be equal is compared first, and every rank learns of a difference.

    1. digest = SHA-256(canonical JSON(value))     2. all-gather 32 bytes     3. equal: done
    4. otherwise all-gather the values and raise, on every rank, the first difference and the two ranks that hold it

Cost: one all-gather of 32 bytes per rank; the values themselves travel only when they differ.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from gradweave.errors import MismatchError
from gradweave.world import communicators, names
from gradweave.world.failures import reported

if TYPE_CHECKING:
    from gradweave.world.groups import Group

_SHOWN_CHARS = 200


def agree(value: Any, what: str, group: Group | ProcessGroup) -> None:
    """Return when every rank of the group gave an equal `value`; otherwise raise on every rank.

    Args:
        value: made of dicts, lists, tuples, strings, numbers, None; anything else counts by its `repr`. Lists and tuples of
            equal items are equal; the order of a dict's keys does not matter.
        what: names the value in errors, for example "shapes of allreduce".
        group: who must agree. Objects travel on its control group (`gradweave.world.control_group`).

    Raises:
        MismatchError: values differ. The message is the same on every rank.
        CollectiveError: a rank did not take part in time.

    Example:
        >>> from gradweave.world import as_group
        >>> agree({"layers": 4}, "the model", as_group("world"))
    """
    pg, name = _control(group)
    if pg.size() == 1:
        return
    text = canonical(value)
    with reported(f"the check of {what}", name, pg):
        if _digests_are_equal(hashlib.sha256(text.encode()).digest(), pg):
            return
        texts = _gather_objects(text, pg)
    _raise_difference([json.loads(other) for other in texts], what, pg, name)


def require_equal(values: list[Any], what: str, group: Group | ProcessGroup) -> None:
    """As `agree`, for values of all peers that an `exchange` has brought already; no communication.

    Raises:
        MismatchError: values differ.
    """
    pg, name = _control(group)
    texts = [canonical(value) for value in values]
    if len(set(texts)) > 1:
        _raise_difference([json.loads(text) for text in texts], what, pg, name)


def _raise_difference(values: list[Any], what: str, pg: ProcessGroup, name: str) -> NoReturn:
    """Compare the first peer with the first that differs from it."""
    shown = [canonical(value) for value in values]
    other = next(peer for peer, text in enumerate(shown) if text != shown[0])
    ranks = dist.get_process_group_ranks(pg)
    where, left, right = first_difference(values[0], values[other])
    raise MismatchError(
        f"{what} differ{_at(where)}: rank {ranks[0]} has {_shown(left)}, rank {ranks[other]} has {_shown(right)}",
        rule="every rank of the group gives equal values",
        fix="look for code that depends on the rank, an unset random seed, or different versions or arguments",
        rank=names.my_rank(),
        group=name,
    )


def exchange(value: Any, group: Group | ProcessGroup, what: str = "an exchange of objects") -> list[Any]:
    """Every rank's picklable `value`, in peer order.

    Begins like `agree`, with 32 bytes that say what is exchanged: ranks that meet in different calls are told, where Gloo would
    end the process.

    Raises:
        MismatchError: another rank is in another call.
        CollectiveError: a rank did not take part in time.

    Example:
        >>> from gradweave.world import as_group
        >>> exchange("hello", as_group("world"))
        ['hello']
    """
    pg, name = _control(group)
    if pg.size() == 1:
        return [value]
    agree({"call": what}, "the calls that ranks make", group)
    with reported(what, name, pg):
        return _gather_objects(value, pg)


def canonical(value: Any) -> str:
    """JSON text that is equal for equal values.

    Example:
        >>> canonical({"b": (1, 2), "a": None})
        '{"a": null, "b": [1, 2]}'
    """
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except (TypeError, ValueError):
        # Keys that JSON cannot hold or sort.
        return json.dumps(repr(value))


def first_difference(left: Any, right: Any, where: str = "") -> tuple[str, Any, Any]:
    """The path to the first difference between two JSON values, and what each has there ("nothing" where it ends).

    Example:
        >>> first_difference([1, {"a": 2}], [1, {"a": 3}])
        ('[1]["a"]', 2, 3)
    """
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                return f'{where}["{key}"]', left.get(key, "nothing"), right.get(key, "nothing")
            if left[key] != right[key]:
                return first_difference(left[key], right[key], f'{where}["{key}"]')
    if isinstance(left, list) and isinstance(right, list):
        for index, (a, b) in enumerate(zip(left, right, strict=False)):
            if a != b:
                return first_difference(a, b, f"{where}[{index}]")
        if len(left) != len(right):
            index = min(len(left), len(right))
            a, b = (side[index] if len(side) > index else "nothing" for side in (left, right))
            return f"{where}[{index}]", a, b
    return where, left, right


def _control(group: Group | ProcessGroup) -> tuple[ProcessGroup, str]:
    if isinstance(group, ProcessGroup):
        return communicators.control(group), group.group_desc
    return communicators.control(group.pg), group.name


def _digests_are_equal(digest: bytes, pg: ProcessGroup) -> bool:
    mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
    everyone = torch.empty(pg.size(), len(digest), dtype=torch.uint8)
    dist.all_gather_single(everyone.view(-1), mine, group=pg)
    return bool((everyone == mine).all())


def _gather_objects(value: Any, pg: ProcessGroup) -> list[Any]:
    everyone: list[Any] = [None] * pg.size()
    dist.all_gather_object(everyone, value, group=pg)
    return everyone


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _shown(value: Any) -> str:
    text = value if value == "nothing" else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
