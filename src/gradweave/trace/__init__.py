"""What happened in an iteration: recorder, files, analysis, scenarios, reports. Pure Python, no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradweave._lazy import attribute_loader

if TYPE_CHECKING:
    from gradweave.trace.analysis import analyse, analyse_iteration
    from gradweave.trace.files import load_dir, load_trace, notes, save_trace
    from gradweave.trace.live import live_recorders, save_all, save_on_exit
    from gradweave.trace.recorder import Recorder
    from gradweave.trace.scenario import Scenario, diagnose
    from gradweave.trace.summary import summarise

_HOME_OF = {
    "Recorder": "recorder",
    "Scenario": "scenario",
    "analyse": "analysis",
    "analyse_iteration": "analysis",
    "diagnose": "scenario",
    "live_recorders": "live",
    "load_dir": "files",
    "load_trace": "files",
    "notes": "files",
    "save_all": "live",
    "save_on_exit": "live",
    "save_trace": "files",
    "summarise": "summary",
}

__all__ = [
    "Recorder",
    "Scenario",
    "analyse",
    "analyse_iteration",
    "diagnose",
    "live_recorders",
    "load_dir",
    "load_trace",
    "notes",
    "save_all",
    "save_on_exit",
    "save_trace",
    "summarise",
]

__getattr__ = attribute_loader(__name__, _HOME_OF)
