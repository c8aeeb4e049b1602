"""Trace files: one JSON file a rank and wrapper, `gradweave-rank00000-<label>.json`, gzipped when the name ends in `.gz`.

A file is written beside its place and moved there, so that a reader never sees half of one. `load_dir` reads every trace of a
folder; what can be analysed although something is missing is no error: `notes` says it in words.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from gradweave.errors import TraceError
from gradweave.model.events import Iteration, Trace
from gradweave.trace.codec import decode, encode

PATTERN = "gradweave-rank*.json"
_FIX = "record again, or remove the file"


def file_name(rank: int, label: str) -> str:
    """Name of a trace file; characters that file systems dislike become `_`.

    Example:
        >>> file_name(3, "resnet/50")
        'gradweave-rank00003-resnet_50.json'
    """
    return f"gradweave-rank{rank:05d}-{re.sub(r'[^A-Za-z0-9._-]+', '_', label)[:100] or 'trace'}.json"


def file_to_write(path: str | Path) -> Path:
    """The path as a file that can be written: what names a folder is refused before anything is computed.

    Raises:
        TraceError: the path is empty or a folder.

    Example:
        >>> file_to_write("runs/report.html").name
        'report.html'
    """
    target = Path(path)
    if not target.name or target.is_dir():
        raise TraceError(
            f"cannot write {str(path)!r}: it is a folder" if str(path) else "cannot write a file without a name",
            rule="the path names a file",
            fix=f"add a name, such as {target / 'report.html'}",
        )
    return target


def save_trace(trace: Trace, path: str | Path) -> Path:
    """Write a trace, atomically; missing folders are made.

    Args:
        trace: what to write.
        path: ends in `.json` or `.json.gz`.

    Raises:
        TraceError: the place cannot be written.
    """
    path = file_to_write(path)
    text = json.dumps(encode(trace), separators=(",", ":"), allow_nan=False).encode()
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(gzip.compress(text, 6) if path.suffix == ".gz" else text)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True) if beside.parent.is_dir() else None
        raise TraceError(
            f"cannot write {path}: {error.strerror}", fix="give a folder that can be written", rank=trace.rank
        ) from error
    return path


def load_trace(path: str | Path) -> Trace:
    """Read one trace file.

    Raises:
        TraceError: missing, truncated, not JSON, another kind of file, or of a newer schema.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        data = json.loads(text)
    except FileNotFoundError as error:
        raise TraceError(f"there is no file {path}", fix="check the path") from error
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", rule="a .gz file is whole", fix=_FIX) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path} is truncated or damaged: {error}", rule="a .gz file is whole", fix=_FIX) from error
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path} is no JSON or is cut short: {error}", rule="a trace file is one JSON object", fix=_FIX
        ) from error
    return decode(data, str(path))


def load_dir(path: str | Path) -> list[Trace]:
    """Read every trace of a folder (not of its sub-folders); a path to one file gives that one.

    Returns:
        Traces sorted by rank, then label; see `notes` for what is incomplete.

    Raises:
        TraceError: no such folder, no trace in it, two files of one rank and label, traces of two runs, or a file that cannot
            be read.

    Example:
        >>> import tempfile
        >>> from gradweave.model.events import Trace
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = save_trace(Trace(0, 1, "world", "gloo", "demo", 0.0, (), ()), f"{folder}/{file_name(0, 'demo')}")
        ...     [trace.label for trace in load_dir(folder)]
        ['demo']
    """
    folder = Path(path)
    if folder.is_file():
        return [load_trace(folder)]
    if not folder.is_dir():
        raise TraceError(f"there is no folder {folder}", fix=_record(folder))
    files = sorted([*folder.glob(PATTERN), *folder.glob(PATTERN + ".gz")])
    if not files:
        raise TraceError(f"{folder} holds no trace", rule=f"traces are called {PATTERN}", fix=_record(folder))
    traces = _without_doubles([(file, load_trace(file)) for file in files])
    _check_one_run(folder, traces)
    return traces


def _record(folder: Path) -> str:
    return (
        f"make traces first: gradweave run --trace {folder} train.py (with torchrun: GRADWEAVE_TRACE_DIR={folder}); "
        "or give the folder that holds them"
    )


def _check_one_run(folder: Path, traces: Sequence[Trace]) -> None:
    """Traces of one label come from ranks that trained one model together."""
    first: dict[str, Trace] = {}
    for trace in traces:
        other = first.setdefault(trace.label, trace)
        if (sorted(g.name for g in trace.gradients), trace.world_size) != (
            sorted(g.name for g in other.gradients),
            other.world_size,
        ):
            raise TraceError(
                f"{folder}: label {trace.label!r} is of different runs on ranks {other.rank} and {trace.rank} "
                f"({len(other.gradients)} gradients on {other.world_size} ranks, {len(trace.gradients)} on {trace.world_size})",
                rule="a folder holds the traces of one run",
                fix="keep the traces of each run in a folder of their own",
            )


def _without_doubles(found: Iterable[tuple[Path, Trace]]) -> list[Trace]:
    seen: dict[tuple[int, str], tuple[Path, Trace]] = {}
    for file, trace in found:
        key = (trace.rank, trace.label)
        if key in seen:
            raise TraceError(
                f"{seen[key][0].name} and {file.name} are both rank {trace.rank}, label {trace.label!r}",
                rule="a rank and label has one file",
                fix="keep the traces of one run in a folder of their own",
            )
        seen[key] = (file, trace)
    return [seen[key][1] for key in sorted(seen)]


def notes(traces: Sequence[Trace]) -> list[str]:
    """Say in words what the traces lack: ranks, iterations, gradients, sane durations. Empty when all is well."""
    by_label = defaultdict(list)
    for trace in traces:
        by_label[trace.label].append(trace)
    found: list[str] = []
    for label, members in sorted(by_label.items()):
        found += [f"{label}: {note}" for note in _label_notes(members)]
    return found


def _label_notes(traces: Sequence[Trace]) -> list[str]:
    found = []
    size = max(trace.world_size for trace in traces)
    ranks = sorted(trace.rank for trace in traces)
    if len({trace.world_size for trace in traces}) > 1:
        found.append("its files name different world sizes: they are of different runs")
    if len(ranks) < size:
        absent = sorted(set(range(size)) - set(ranks))
        which = f"; missing: {_short(absent)}" if traces[0].group == "world" else ""
        found.append(f"{len(ranks)} of {size} ranks are here{which}; figures across ranks leave them out")
    for trace in traces:
        if not trace.iterations:
            found.append(f"rank {trace.rank} holds no iteration")
        bad = [iteration.step for iteration in trace.iterations if _goes_backwards(iteration)]
        if bad:
            found.append(f"rank {trace.rank} has negative durations in step {_short(bad)}; they count as zero")
    return found


def _goes_backwards(iteration: Iteration) -> bool:
    marks = [iteration.previous_end_s, iteration.fp_start_s, iteration.fp_end_s, iteration.bp_end_s, iteration.iteration_end_s]
    known = [mark for mark in marks if mark is not None]
    return known != sorted(known) or any(event.end_s < event.start_s for event in iteration.collectives)


def _short(numbers: Sequence[int], limit: int = 8) -> str:
    text = ", ".join(str(number) for number in numbers[:limit])
    return text if len(numbers) <= limit else f"{text} and {len(numbers) - limit} more"
