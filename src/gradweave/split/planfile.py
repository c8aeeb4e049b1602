"""Plan files: a plan that is kept between runs, as JSON. A file is written whole or not at all.

    {"schema": "gradweave.plan", "schema_version": 1, "segments": [["c", "b"], ["a"]],
     "model_signature": "sha256:...", "group_size": 2, "backend": "gloo", "topology": null,
     "created": "2025-01-31T12:00:00+00:00", "note": "", "parameters": {"a": ["float32", [4, 4]], ...}}

`topology`, `created`, `note` and `parameters` may be left out; `parameters` lets a check name the one whose shape differs.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gradweave.errors import PlanFileError
from gradweave.model import GradientInfo, Segment
from gradweave.split.plan import Plan, make_plan, model_signature
from gradweave.split.planschema import check_fields

__all__ = ["Plan", "load_plan", "make_plan", "model_signature", "save_plan", "write_plan"]


def save_plan(
    path: str | os.PathLike[str],
    infos: Sequence[GradientInfo],
    segments: Sequence[Segment] | Sequence[int],
    *,
    group_size: int,
    backend: str,
    topology: str | None = None,
    note: str = "",
) -> Plan:
    """Write a plan file, whole or not at all. The arguments after `path` are those of `make_plan`.

    Raises:
        SplitError: the segments do not cover the gradients.
        PlanFileError: a field is malformed, or the file cannot be written.
    """
    plan = make_plan(infos, segments, group_size=group_size, backend=backend, topology=topology, note=note)
    write_plan(path, plan)
    return plan


def write_plan(path: str | os.PathLike[str], plan: Plan) -> None:
    """Write a plan to a file, whole or not at all.

    Raises:
        PlanFileError: a field is malformed, or the file cannot be written.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise PlanFileError(f"path={path!r}", rule="a plan is written to a file's path", fix='for example "plan.json"')
    target = Path(path)
    check_fields(plan.to_dict(), str(target))
    text = json.dumps(plan.to_dict(), indent=1) + "\n"
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise _unwritable(target, error) from error


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file.

    Raises:
        PlanFileError: the file cannot be read, is not a plan, or is of a newer version.
    """
    source = os.fspath(path)
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        fix = "give the path of a file that gradweave.save_plan wrote"
        raise PlanFileError(f"{source}: cannot be read: {error.strerror}", rule="a plan is a file", fix=fix) from error
    except (ValueError, RecursionError) as error:
        fix = "write it again with gradweave.save_plan"
        raise PlanFileError(f"{source}: is not JSON: {error}", rule="a plan file is JSON in UTF-8", fix=fix) from error
    fields = check_fields(data, source)
    return Plan(
        segments=tuple(tuple(segment) for segment in fields["segments"]),
        model_signature=fields["model_signature"],
        group_size=fields["group_size"],
        backend=fields["backend"],
        topology=fields.get("topology"),
        created=fields.get("created", ""),
        note=fields.get("note", ""),
        parameters={name: (dtype, tuple(shape)) for name, (dtype, shape) in fields.get("parameters", {}).items()},
        source=source,
    )


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _unwritable(target: Path, error: OSError) -> PlanFileError:
    fix = "give a path in a folder that exists and that you can write to"
    return PlanFileError(f"{target}: cannot be written: {error.strerror}", rule="a plan is a file", fix=fix)
