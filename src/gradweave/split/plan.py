"""A plan: a split of one model by parameter name, and what it was made for.

Names make a plan exact from the first step, before the order of generation has been observed. The model's signature, the
group's size and the backend say whether a plan fits a run; the first difference is named.

    signature = "sha256:" + sha256 of the sorted list of (name, dtype, shape): equal whatever the order of the gradients
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any

from gradweave.errors import PlanFileError
from gradweave.model import GradientInfo, Segment
from gradweave.split.planschema import SCHEMA, SCHEMA_VERSION, check_fields
from gradweave.split.strategy import SplitStrategy

_REPLAN = "make a new plan for this run, or leave strategy=None for the default"


@dataclass(frozen=True, slots=True)
class Plan:
    """A split of one model, as a plan file holds it.

    Attributes:
        segments: names of the parameters of each segment, in the order of generation.
        model_signature: `model_signature` of the gradients it was made for.
        group_size: number of ranks it was made for.
        backend: name of the communication backend, for example "gloo".
        topology: a description of the network, or None.
        created: when it was made, ISO 8601.
        note: free text, for example what the tuner measured.
        parameters: dtype and shape by name; empty where the file leaves them out.
        source: the file it was read from, for messages.
    """

    segments: tuple[tuple[str, ...], ...]
    model_signature: str
    group_size: int
    backend: str
    topology: str | None = None
    created: str = ""
    note: str = ""
    parameters: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    source: str = "the plan"

    @property
    def order(self) -> tuple[str, ...]:
        """Names of all parameters, in the order of generation."""
        return tuple(name for segment in self.segments for name in segment)

    def strategy(self) -> SplitStrategy:
        """Return the strategy that splits by these names."""
        return SplitStrategy.by_names(self.segments)

    def check(
        self,
        infos: Sequence[GradientInfo],
        group_size: int | None = None,
        backend: str | None = None,
        topology: str | None = None,
    ) -> None:
        """Check that the plan was made for these gradients and, where given, this group size, backend and topology.

        Args:
            infos: the model's gradients, in any order.
            group_size: number of ranks of the group, or None to accept any.
            backend: name of the backend, or None to accept any.
            topology: a description of the network, or None to accept any; a plan that names none fits every one.

        Raises:
            PlanFileError: names the first difference.

        Example:
            >>> plan = make_plan([GradientInfo("a", (4,), "float32", 16)], [0], group_size=2, backend="gloo")
            >>> plan.check([GradientInfo("a", (4,), "float32", 16)], group_size=2)
            >>> plan.check([GradientInfo("a", (5,), "float32", 20)])  # doctest: +ELLIPSIS
            Traceback (most recent call last):
                ...
            gradweave.errors.PlanFileError: the plan: parameter 'a' is float32 [4] in the plan and float32 [5] in the model...
        """
        difference = _first_difference(self, infos)
        if difference is None and group_size is not None and group_size != self.group_size:
            difference = f"it was made for {self.group_size} ranks, and the group has {group_size}"
        if difference is None and backend is not None and backend != self.backend:
            difference = f"it was made for backend {self.backend!r}, and the group has {backend!r}"
        if difference is None and None not in (topology, self.topology) and topology != self.topology:
            difference = f"it was made for {self.topology}, and the group has {topology}"
        if difference is not None:
            rule = "a plan serves the model, the group size and the backend that it was made for"
            raise PlanFileError(f"{self.source}: {difference}", rule=rule, fix=_REPLAN)

    def to_dict(self) -> dict[str, Any]:
        """Return what the file holds."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "segments": [list(segment) for segment in self.segments],
            "model_signature": self.model_signature,
            "group_size": self.group_size,
            "backend": self.backend,
            "topology": self.topology,
            "created": self.created,
            "note": self.note,
            "parameters": {name: [dtype, list(shape)] for name, (dtype, shape) in self.parameters.items()},
        }


def model_signature(infos: Sequence[GradientInfo]) -> str:
    """Return a hash of the names, shapes and dtypes of a model's gradients, whatever their order.

    Example:
        >>> a, b = GradientInfo("a", (4,), "float32", 16), GradientInfo("b", (), "float32", 4)
        >>> model_signature([a, b]) == model_signature([b, a])
        True
    """
    rows = sorted([info.name, info.dtype, list(info.shape)] for info in infos)
    return "sha256:" + hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def make_plan(
    infos: Sequence[GradientInfo],
    segments: Sequence[Segment] | Sequence[int],
    *,
    group_size: int,
    backend: str,
    topology: str | None = None,
    note: str = "",
) -> Plan:
    """Make a plan of a model's gradients and their segments.

    Args:
        infos: the gradients, in the order of generation.
        segments: the segments, or the last index of each.
        group_size: number of ranks.
        backend: name of the communication backend.
        topology: a description of the network.
        note: free text.

    Raises:
        SplitError: the segments do not cover the gradients.
        PlanFileError: a field is malformed, or two gradients have one name.

    Example:
        >>> infos = [GradientInfo(name, (4,), "float32", 16) for name in "cba"]
        >>> make_plan(infos, [0, 2], group_size=2, backend="gloo").segments
        (('c',), ('b', 'a'))
    """
    lasts = [segment.last if isinstance(segment, Segment) else segment for segment in segments]
    lasts = list(SplitStrategy.by_idx(lasts).boundaries([info.size_bytes for info in infos]))
    names = [info.name for info in infos]
    plan = Plan(
        segments=tuple(tuple(names[first:stop]) for first, stop in pairwise([0, *(last + 1 for last in lasts)])),
        model_signature=model_signature(infos),
        group_size=group_size,
        backend=backend,
        topology=topology,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        note=note,
        parameters={info.name: (info.dtype, tuple(info.shape)) for info in infos},
    )
    check_fields(plan.to_dict(), plan.source)
    return plan


def _first_difference(plan: Plan, infos: Sequence[GradientInfo]) -> str | None:
    model, planned = {info.name: info for info in infos}, set(plan.order)
    for name in plan.order:
        if name not in model:
            return f"its parameter {name!r} is missing from the model"
    for info in infos:
        if info.name not in planned:
            return f"the model's parameter {info.name!r} is not in the plan"
    for name, (dtype, shape) in plan.parameters.items():
        info = model[name]
        if (dtype, shape) != (info.dtype, tuple(info.shape)):
            found = f"{info.dtype} {list(info.shape)}"
            return f"parameter {name!r} is {dtype} {list(shape)} in the plan and {found} in the model"
    if model_signature(infos) != plan.model_signature:
        return "the names are the model's, but a shape or a dtype differs from the model it was made for"
    return None
