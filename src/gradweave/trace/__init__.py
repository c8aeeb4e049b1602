"""What happened in an iteration: recorder, files, analysis, scenarios, reports. Pure Python, no torch."""

from gradweave.trace.analysis import analyse, analyse_iteration
from gradweave.trace.files import load_dir, load_trace, notes, save_trace
from gradweave.trace.live import live_recorders, save_all, save_on_exit
from gradweave.trace.recorder import Recorder
from gradweave.trace.scenario import Scenario, diagnose
from gradweave.trace.summary import summarise

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
