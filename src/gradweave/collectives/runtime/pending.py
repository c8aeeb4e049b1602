"""A collective that has started: wait for it, or ask whether it has ended.

Steps: the works of torch are awaited once, errors of torch become `CollectiveError`s, then the result is put together.
Cost: none beyond the collective. On CUDA, `wait` makes the current stream wait, not the host, as torch's works do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

from gradweave.world.failures import reported
from gradweave.world.groups import Group

T = TypeVar("T")


class Pending(Generic[T]):
    """The future result of a collective.

    Args:
        works: torch's handles, in launch order.
        finish: puts the result together, after all works.
        what: the collective, for errors.
        group: where it runs.
    """

    def __init__(self, works: Sequence[Any], finish: Callable[[], T], what: str, group: Group) -> None:
        self._works, self._finish, self._what, self._group = list(works), finish, what, group
        self._result: list[T] = []

    def wait(self) -> T:
        """The result; waits for it at the first call. Later calls return the same object.

        Raises:
            CollectiveError: a peer died, did not come within the group's timeout, or the backend refused.
        """
        if not self._result:
            with reported(self._what, self._group.name, self._group.pg), torch.no_grad():
                for work in self._works:
                    work.wait()
                self._result.append(self._finish())
            self._works.clear()
        return self._result[0]

    def done(self) -> bool:
        """Whether `wait` would return, or raise, at once."""
        return all(work.is_completed() for work in self._works)

    def __repr__(self) -> str:
        return f"<Pending {self._what} on {self._group.name!r}: {'done' if self.done() else 'running'}>"
