"""An instance as JSON, and the solution as JSON: what `gradweave solve` reads and prints.

    {"ready_s": [...], "bytes": [...], "alpha_s": a, "beta_s_per_byte": b}      affine cost, or
    {"ready_s": [...], "bytes": [...], "table": [[bytes, s], ...]}              measured cost
    optional: "max_segments", "forced" (indices that end a segment), "max_bytes"

A field that is unknown, missing or malformed is an error that names it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradweave.errors import ConfigError
from gradweave.model.cost import AffineCost, TableCost
from gradweave.tune import baselines
from gradweave.tune.problem import Problem, make_problem
from gradweave.tune.solve import Solution, solve_problem

_REQUIRED = ("ready_s", "bytes")
_AFFINE = ("alpha_s", "beta_s_per_byte")
_OPTIONAL = ("table", "max_segments", "forced", "max_bytes")


def read_problem(path: str | os.PathLike[str]) -> Problem:
    """Read an instance from a JSON file.

    Raises:
        ConfigError: the file is not JSON, or a field is malformed.
        OSError: the file cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{os.fspath(path)} is not JSON: {error}", rule="an instance is JSON in UTF-8", fix="see gradweave solve --help"
        ) from error
    return parse_problem(data)


def parse_problem(data: Any) -> Problem:
    """Check an instance that was read from JSON.

    Raises:
        ConfigError: a field is missing, unknown or malformed; the message names it.
        SplitError: max_segments is too small for the other limits.

    Example:
        >>> parse_problem({"ready_s": [0, 2, 5], "bytes": [2, 1, 1], "alpha_s": 3, "beta_s_per_byte": 1}).count
        3
    """
    known = (*_REQUIRED, *_AFFINE, *_OPTIONAL)
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"the instance is a {type(data).__name__}", rule="an instance is a JSON object", fix='write {"ready_s": [...], ...}'
        )
    for name in data:
        if name not in known:
            raise ConfigError(f"the field {name!r} is unknown", rule=f"the fields are {', '.join(known)}", fix="take it out")
    for name in _REQUIRED:
        if name not in data:
            raise ConfigError(f"the field {name!r} is missing", rule="ready_s and bytes are needed", fix=f"add {name!r}")
    return make_problem(
        data["ready_s"],
        data["bytes"],
        _cost(data),
        max_segments=data.get("max_segments"),
        forced=_list(data, "forced"),
        max_bytes=data.get("max_bytes"),
    )


def _cost(data: Mapping[str, Any]) -> AffineCost | TableCost:
    given = [name for name in _AFFINE if name in data]
    if data.get("table") is not None:
        if given:
            raise ConfigError(
                f"both 'table' and {given[0]!r} are given", rule="the cost is a table, or alpha and beta", fix="leave one out"
            )
        return TableCost(tuple(_point(data["table"], k) for k in range(len(_list(data, "table")))))
    for name in _AFFINE:
        if name not in data:
            raise ConfigError(
                f"the field {name!r} is missing", rule="a cost is alpha_s and beta_s_per_byte, or a table", fix=f"add {name!r}"
            )
        value = data[name]
        if not _is_number(value) or value < 0:
            raise ConfigError(f"{name} is {value!r}", rule=f"{name} is a finite number of at least 0", fix="give seconds")
    return AffineCost(float(data["alpha_s"]), float(data["beta_s_per_byte"]))


def _point(table: list[Any], k: int) -> tuple[float, float]:
    entry = table[k]
    if not isinstance(entry, list) or len(entry) != 2 or not all(_is_number(value) for value in entry):
        raise ConfigError(
            f"table[{k}] is {entry!r}", rule="table holds pairs [bytes, seconds]", fix="write [[1024, 0.001], ...]"
        )
    return float(entry[0]), float(entry[1])


def _list(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if value is not None and not isinstance(value, list):
        raise ConfigError(f"{name} is {value!r}", rule=f"{name} is a list", fix="leave it out, or write a list")
    return value or []


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def solution_dict(problem: Problem, solution: Solution) -> dict[str, Any]:
    """The solution as `gradweave solve --json` prints it; times in s."""
    out: dict[str, Any] = {
        "plan": list(solution.plan),
        "end_s": solution.end_s,
        "exposed_s": solution.exposed_s,
        "bound_s": solution.bound_s,
        "baselines": dict(baselines.ends_s(problem)),
    }
    return {**out, "notes": list(solution.notes)} if solution.notes else out


def solve_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read an instance, solve it, and return what `gradweave solve --json` prints.

    Raises:
        ConfigError, SplitError, OSError: as `read_problem`.
    """
    problem = read_problem(path)
    return solution_dict(problem, solve_problem(problem))
