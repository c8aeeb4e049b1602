"""Which recorders are alive, and saving all of them at once.

Recorders enter on construction and leave when they are collected; `save_on_exit` keeps them, because a script that trains
inside a function has dropped its optimizer by the time the interpreter exits. The environment variable GRADWEAVE_TRACE_DIR,
read by the engine when a wrapper is built, calls `save_on_exit` with its value.
"""

from __future__ import annotations

import atexit
import sys
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from gradweave.world import names

if TYPE_CHECKING:
    from gradweave.trace.recorder import Recorder

_live: weakref.WeakSet[Recorder] = weakref.WeakSet()
_kept: list[Recorder] = []
_directories: set[Path] = set()


def register(recorder: Recorder) -> None:
    """Enter a recorder (its constructor calls this)."""
    _live.add(recorder)
    if _directories:
        _kept.append(recorder)


def live_recorders() -> list[Recorder]:
    """Every recorder alive, in the order in which they were built."""
    return sorted(_live, key=lambda recorder: recorder.serial)


def save_all(directory: str | Path) -> list[Path]:
    """Save every live recorder that holds an iteration; recorders of one label get `-2`, `-3`, ... so that none is lost.

    Args:
        directory: made if it does not exist.

    Returns:
        The files written, one a recorder.

    Raises:
        TraceError: the directory cannot be written.
    """
    paths, taken = [], set()
    for recorder in live_recorders():
        if not recorder.has_iterations:
            continue
        label, copy = recorder.label, 1
        while (recorder.rank, label) in taken:
            copy += 1
            label = f"{recorder.label}-{copy}"
        taken.add((recorder.rank, label))
        paths.append(recorder.save(directory, label=label))
    return paths


def save_on_exit(directory: str | Path) -> None:
    """Call `save_all(directory)` when the interpreter exits; a second call with the same directory adds nothing.

    Args:
        directory: where the traces go; relative paths are resolved now, not at exit.
    """
    path = Path(directory).resolve()
    if path in _directories:
        return
    _directories.add(path)
    _kept.extend(recorder for recorder in live_recorders() if recorder not in _kept)
    atexit.register(_save_quietly, path)


def reset() -> None:
    """Forget every recorder and every directory (for tests)."""
    _live.clear()
    _kept.clear()
    _directories.clear()


def _save_quietly(path: Path) -> None:
    """At exit there is no caller to catch an error, and it must not change the exit status of a training that succeeded."""
    if path not in _directories or names.is_forked_child():
        return
    try:
        save_all(path)
    except Exception as error:
        print(f"gradweave: the trace could not be saved: {error}", file=sys.stderr)
