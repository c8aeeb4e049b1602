"""The schema of plan files: what each field must be, and the message when it is not.

Fields are checked in the order below; the first that fails is named with its value, the rule and the fix. Unknown fields are
refused, because they are misspellings or belong to a newer version.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from gradweave.errors import PlanFileError, SplitError
from gradweave.split.checks import check_names, show

SCHEMA = "gradweave.plan"
SCHEMA_VERSION = 1

_REWRITE = "write it again with gradweave.save_plan"
_REQUIRED = ("schema", "schema_version", "segments", "model_signature", "group_size", "backend")


def check_fields(data: Any, source: str) -> dict[str, Any]:
    """Check everything that a plan file holds.

    Args:
        data: what the JSON says.
        source: the file's name, for messages.

    Returns:
        The same data.

    Raises:
        PlanFileError: names the file, the field, the value, the rule and the fix.
    """
    if not isinstance(data, dict):
        raise PlanFileError(f"{source}: holds {show(data)}", rule="a plan file holds one JSON object", fix=_REWRITE)
    for name in _REQUIRED:
        if name not in data:
            raise PlanFileError(f"{source}: field {name!r} is missing", rule=f"{name!r} is {_FIELDS[name][1]}", fix=_REWRITE)
        _check_field(name, data[name], source)
    for name, value in data.items():
        if name not in _FIELDS:
            rule = f"the fields are {', '.join(_FIELDS)}"
            raise PlanFileError(f"{source}: field {show(name)} is unknown", rule=rule, fix=f"remove or rename {show(name)}")
        if name not in _REQUIRED:
            _check_field(name, value, source)
    _check_parameters_match(data, source)
    return data


def _check_field(name: str, value: Any, source: str) -> None:
    if name == "schema_version" and _is_count(value) and value > SCHEMA_VERSION:
        rule = f"this version of Gradweave reads schema_version {SCHEMA_VERSION}"
        raise PlanFileError(f"{source}: schema_version is {value}", rule=rule, fix="pip install --upgrade gradweave")
    if name == "segments":
        try:
            check_names(value)
        except SplitError as error:
            raise PlanFileError(f"{source}: field 'segments': {error.what}", rule=error.rule, fix=error.fix) from None
        return
    is_valid, rule = _FIELDS[name]
    if not is_valid(value):
        raise PlanFileError(f"{source}: field {name!r} is {show(value)}", rule=f"{name!r} is {rule}", fix=_REWRITE)


def _check_parameters_match(data: dict[str, Any], source: str) -> None:
    """Refuse a file whose list of shapes is for other parameters than its segments."""
    parameters = data.get("parameters") or {}
    planned = {name for segment in data["segments"] for name in segment}
    odd = sorted(planned ^ set(parameters)) if parameters else []
    if odd:
        where = "'segments', not in 'parameters'" if odd[0] in planned else "'parameters', not in 'segments'"
        rule = "'parameters' has the same names as 'segments', or is left out"
        raise PlanFileError(f"{source}: parameter {odd[0]!r} is in {where}", rule=rule, fix=_REWRITE)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_date(value: Any) -> bool:
    try:
        # Python 3.10 does not read the Z of UTC.
        return _is_text(value) and (not value or bool(datetime.fromisoformat(re.sub("Z$", "+00:00", value))))
    except ValueError:
        return False


def _is_parameters(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(row, list)
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], list)
        and all(isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in row[1])
        for row in value.values()
    )


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "schema": (lambda value: value == SCHEMA, f"the string {SCHEMA!r}"),
    "schema_version": (_is_count, "a positive integer"),
    "segments": (lambda value: True, "a list of non-empty lists of parameter names, no name twice"),
    "model_signature": (
        lambda value: _is_text(value) and bool(re.fullmatch("sha256:[0-9a-f]{64}", value)),
        "'sha256:' and 64 hexadecimal digits",
    ),
    "group_size": (_is_count, "a positive integer"),
    "backend": (lambda value: _is_text(value) and bool(value), "a non-empty string"),
    "topology": (lambda value: value is None or _is_text(value), "a string or null"),
    "created": (_is_date, "a date in ISO 8601, for example 2025-01-31T12:00:00+00:00"),
    "note": (_is_text, "a string"),
    "parameters": (_is_parameters, "an object of name: [dtype, [sizes of the dimensions]]"),
}
