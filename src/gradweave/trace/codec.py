"""A trace as JSON and back.

The JSON holds the fields of the dataclasses under their own names, plus `schema` and `schema_version`; unknown is null.
Ready times, which are most of the bytes, are rounded to 0.1 us. Reading checks the kind of every field, so that a damaged
file ends in one clear error and not in an exception of the analysis.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from gradweave.errors import TraceError
from gradweave.model.events import SCHEMA, SCHEMA_VERSION, CollectiveEvent, Iteration, Trace
from gradweave.model.segment import GradientInfo

T = TypeVar("T")
Json = dict[str, Any]


def encode(trace: Trace) -> Json:
    """Turn a trace into JSON-ready data.

    Example:
        >>> encode(Trace(0, 1, "world", "gloo", "x", 0.0, (), ()))["schema_version"]
        1
    """
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "rank": trace.rank,
        "world_size": trace.world_size,
        "group": trace.group,
        "backend": trace.backend,
        "label": trace.label,
        "epoch_offset_s": trace.epoch_offset_s,
        "meta": dict(trace.meta),
        "gradients": [
            {"name": g.name, "shape": list(g.shape), "dtype": g.dtype, "size_bytes": g.size_bytes} for g in trace.gradients
        ],
        "iterations": [_encode_iteration(iteration) for iteration in trace.iterations],
    }


def decode(data: object, where: str) -> Trace:
    """Turn JSON data into a trace.

    Args:
        data: what `json.load` returned.
        where: the file's name, for errors.

    Raises:
        TraceError: another kind of file, a newer schema, or a field that is missing or of the wrong kind.
    """
    read = _Fields(data, where)
    if read.data.get("schema") != SCHEMA:
        raise TraceError(
            f"{where} is not a Gradweave trace: its schema is {read.data.get('schema')!r}",
            rule=f"a trace has schema {SCHEMA!r}",
            fix="give the files that the recorder wrote (gradweave-rank*.json)",
        )
    version = read.integer("schema_version")
    if version > SCHEMA_VERSION:
        raise TraceError(
            f"{where} has schema_version {version}",
            rule=f"this Gradweave reads versions up to {SCHEMA_VERSION}",
            fix="read it with the Gradweave that wrote it, or a newer one",
        )
    return Trace(
        rank=read.integer("rank"),
        world_size=read.integer("world_size"),
        group=read.text("group"),
        backend=read.text("backend"),
        label=read.text("label"),
        epoch_offset_s=read.number("epoch_offset_s"),
        gradients=read.each("gradients", _decode_gradient),
        iterations=read.each("iterations", _decode_iteration),
        meta={str(key): str(value) for key, value in read.mapping("meta").items()},
    )


def _encode_iteration(iteration: Iteration) -> Json:
    return {
        "step": iteration.step,
        "previous_end_s": iteration.previous_end_s,
        "fp_start_s": iteration.fp_start_s,
        "fp_end_s": iteration.fp_end_s,
        "bp_end_s": iteration.bp_end_s,
        "iteration_end_s": iteration.iteration_end_s,
        "plan": list(iteration.plan),
        "overlap": iteration.overlap,
        "collectives": [{name: getattr(event, name) for name in CollectiveEvent.__slots__} for event in iteration.collectives],
        "ready_s": [None if at is None else round(at, 7) for at in iteration.ready_s],
    }


def _decode_gradient(read: _Fields) -> GradientInfo:
    shape = read.integers("shape")
    return GradientInfo(read.text("name"), shape, read.text("dtype"), read.integer("size_bytes"))


def _decode_iteration(read: _Fields) -> Iteration:
    return Iteration(
        step=read.integer("step"),
        previous_end_s=read.maybe("previous_end_s"),
        fp_start_s=read.number("fp_start_s"),
        fp_end_s=read.maybe("fp_end_s"),
        bp_end_s=read.number("bp_end_s"),
        iteration_end_s=read.number("iteration_end_s"),
        plan=read.integers("plan"),
        overlap=bool(read.data.get("overlap", True)),
        collectives=read.each("collectives", _decode_collective),
        ready_s=read.maybe_numbers("ready_s"),
    )


def _decode_collective(read: _Fields) -> CollectiveEvent:
    return CollectiveEvent(
        segment=read.integer("segment"),
        first=read.integer("first"),
        last=read.integer("last"),
        size_bytes=read.integer("size_bytes"),
        dtype=read.text("dtype"),
        start_s=read.number("start_s"),
        end_s=read.number("end_s"),
        ready_s=read.maybe("ready_s"),
        kind=read.text("kind"),
        group=read.text("group"),
    )


class _Fields:
    """Fields of one JSON object, checked as they are read."""

    def __init__(self, data: object, where: str) -> None:
        if not isinstance(data, dict):
            raise TraceError(
                f"{where} holds a {type(data).__name__}", rule="it is a JSON object", fix="give a file that the recorder wrote"
            )
        self.data: Json = data
        self.where = where

    def _get(self, name: str, accepts: Callable[[Any], bool], kind: str) -> Any:
        value = self.data.get(name)
        if name not in self.data or not accepts(value):
            found = f"is {value!r:.60}" if name in self.data else "is missing"
            raise TraceError(
                f"{self.where}: {name!r} {found}", rule=f"it is {kind}", fix="the file is damaged: record it again"
            )
        return value

    def integer(self, name: str) -> int:
        return int(self._get(name, _is_integer, "a whole number"))

    def number(self, name: str) -> float:
        return float(self._get(name, _is_number, "a finite number"))

    def text(self, name: str) -> str:
        return str(self._get(name, lambda value: isinstance(value, str), "a text"))

    def maybe(self, name: str) -> float | None:
        value = self._get(name, lambda value: value is None or _is_number(value), "a finite number or null")
        return None if value is None else float(value)

    def integers(self, name: str) -> tuple[int, ...]:
        return tuple(
            self._get(name, lambda value: isinstance(value, list) and all(map(_is_integer, value)), "a list of whole numbers")
        )

    def maybe_numbers(self, name: str) -> tuple[float | None, ...]:
        def accepts(value: Any) -> bool:
            return isinstance(value, list) and all(item is None or _is_number(item) for item in value)

        return tuple(self._get(name, accepts, "a list of numbers or nulls"))

    def mapping(self, name: str) -> Json:
        return dict(self._get(name, lambda value: isinstance(value, dict), "an object"))

    def each(self, name: str, decode_item: Callable[[_Fields], T]) -> tuple[T, ...]:
        items = self._get(name, lambda value: isinstance(value, list), "a list")
        return tuple(decode_item(_Fields(item, f"{self.where}: {name}[{index}]")) for index, item in enumerate(items))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
