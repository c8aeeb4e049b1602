"""The HTML report: one file that opens from disk, draws itself and needs no network.

The figures of `summary_dict` are embedded as one JSON block (`#gradweave-data`); inline script draws the page from it and marks
each number with `data-key`, its path in the JSON. A content security policy forbids the page every request.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from gradweave.errors import TraceError
from gradweave.model.events import Trace
from gradweave.trace.files import file_to_write
from gradweave.trace.reports.data import summary_dict


def write_report(traces: Sequence[Trace], path: str | Path) -> Path:
    """Write the report, atomically.

    Args:
        traces: of any ranks and wrappers (see `load_dir`).
        path: of the HTML file; missing folders are made.

    Raises:
        TraceError: no trace holds an iteration, the path names a folder, or the place cannot be written.
    """
    path = file_to_write(path)
    data = summary_dict(traces)
    if not data["wrappers"]:
        raise TraceError("there is no iteration to report", rule="a trace holds at least one", fix="train a few steps first")
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(render_html(data), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror}", fix="give a place that can be written") from error
    return path


def render_html(data: dict[str, Any]) -> str:
    """The page for what `summary_dict` returned.

    Example:
        >>> "</title>" in render_html({"notes": [], "wrappers": []})
        True
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gradweave.trace.reports"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    labels = ", ".join(wrapper["label"] for wrapper in data["wrappers"])
    return environment.get_template("report.html.j2").render(title=labels, data=_script_json(data))


def _script_json(data: dict[str, Any]) -> str:
    """JSON that cannot end its script element, whatever names it holds."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
