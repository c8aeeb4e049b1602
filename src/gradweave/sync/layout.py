"""A plan laid over the flat buffers: which slice of which arena each segment sends.

A segment whose gradients have several dtypes or devices is several messages, launched together. The engine's flags ride behind
the last gradient of the last message: one per gradient (did it get a value on this rank), one for taking part, and one for a
pending change of plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradweave.model import GradientInfo, Segment, segments_from_boundaries
from gradweave.reduce import Dense, Message, Reducer
from gradweave.sync import notices
from gradweave.sync.arena import Arena, Key, arena_key
from gradweave.sync.table import Slot

# Largest number of ranks whose flags sum up exactly in a dtype; float32 counts to 2**24.
_COUNTS_TO = {torch.bfloat16: 256, torch.float16: 2048}


class Layout:
    """Arenas for an order of gradients, and messages for a plan.

    Args:
        order: slots in order of generation.
        group, size: the engine's communicator and its number of ranks.
        reducer: reduces the messages.

    Attributes:
        segments: the plan.
        buckets: per segment the messages it sends.
        tail: the flags of this rank, then of all ranks.
    """

    def __init__(self, order: Sequence[Slot], group: ProcessGroup, size: int, reducer: Reducer) -> None:
        self.order, self.group, self.size, self.reducer = list(order), group, size, reducer
        for pos, slot in enumerate(self.order):
            slot.pos = pos
        self.tail_elems = len(self.order) + notices.COUNT
        dense = [slot for slot in self.order if not slot.sparse]
        self._last_key: Key | None = arena_key(dense[-1]) if dense else None
        by_key: dict[Key, list[Slot]] = {}
        for slot in dense:
            by_key.setdefault(arena_key(slot), []).append(slot)
        self.arenas = {key: Arena(key, slots, self.tail_elems if key == self._last_key else 0) for key, slots in by_key.items()}

    @property
    def infos(self) -> tuple[GradientInfo, ...]:
        """Descriptions of the gradients in index order."""
        return tuple(slot.info for slot in self.order)

    def apply(self, boundaries: Sequence[int]) -> None:
        """Cut the arenas into the messages of a plan (ascending last indices)."""
        infos = self.infos
        self.boundaries = tuple(boundaries)
        self.segments: tuple[Segment, ...] = segments_from_boundaries(boundaries, [info.size_bytes for info in infos])
        self._cut()

    def fresh_memory(self) -> None:
        """Give the gradients new buffers: somebody still holds the old ones. Gradients in them move along."""
        for arena in self.arenas.values():
            arena.allocate()
        self._cut()

    def held_elsewhere(self) -> bool:
        """Whether old gradients are in the user's hands."""
        return any(arena.held_elsewhere() for arena in self.arenas.values())

    def _cut(self) -> None:
        self.buckets: list[list[Message]] = []
        self.states: list[Any] = []
        self.tail: Tensor | None = None
        self.tail_message: Message | None = None
        count = 0
        for segment in self.segments:
            messages = self._messages_of(segment, count)
            count += len(messages)
            self.buckets.append(messages)
        self._attach_tail(count)
        self.states = [[self.reducer.init(message) for message in bucket] for bucket in self.buckets]
        for arena in self.arenas.values():
            arena.rebase()

    def _messages_of(self, segment: Segment, count: int) -> list[Message]:
        by_key: dict[Key, list[Slot]] = {}
        for slot in self.order[segment.first : segment.last + 1]:
            slot.bucket = segment.index
            if not slot.sparse:
                by_key.setdefault(arena_key(slot), []).append(slot)
        groups = sorted(by_key.items(), key=lambda item: item[1][-1].pos)
        return [self._message(segment, count + nth, key, slots) for nth, (key, slots) in enumerate(groups)]

    def _message(self, segment: Segment, index: int, key: Key, slots: list[Slot]) -> Message:
        arena = self.arenas[key]
        first = slots[0].place
        stop = arena.end_of(first + len(slots) - 1)
        rides = self._rides(segment, key)
        flat = arena.flat[arena.offsets[first] : stop + (self.tail_elems if rides else 0)]
        if rides:
            self.tail = arena.tail
        return Message(
            segment=segment,
            index=index,
            flat=flat,
            tail_elems=self.tail_elems if rides else 0,
            group=self.group,
            size=self.size,
            is_last=False,
            parameters=[slot.param for slot in slots],
            views=[s.view for s in slots if s.view is not None],
        )

    def _rides(self, segment: Segment, key: Key) -> bool:
        dtypes = (key[1], self.reducer.wire_dtype(key[1]))
        exact = all(self.size <= _COUNTS_TO.get(dtype, self.size) for dtype in dtypes)
        return exact and self.reducer.carries_tail and segment.index == len(self.segments) - 1 and key == self._last_key

    def _attach_tail(self, count: int) -> None:
        """Mark the last message; where the flags cannot ride, give them a message of their own."""
        last = [message for bucket in self.buckets for message in bucket][-1:]
        for message in last:
            message.is_last = True
        if self.tail is None:
            device = self.order[0].param.device
            self.tail = torch.zeros(self.tail_elems, dtype=torch.float32, device=device)
            self.tail_message = Message(
                segment=self.segments[-1],
                index=count,
                flat=self.tail,
                tail_elems=self.tail_elems,
                group=self.group,
                size=self.size,
                is_last=not last,
            )

    def start_tail(self) -> Any:
        """Send the flags on their own; None when they rode along."""
        return None if self.tail_message is None else Dense().start(self.tail_message, None, 1)
