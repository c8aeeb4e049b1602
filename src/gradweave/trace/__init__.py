"""What happened in an iteration: recorder, files, analysis, scenarios, reports. Pure Python, no torch."""

from gradweave.trace.live import live_recorders, save_all, save_on_exit
from gradweave.trace.recorder import Recorder

__all__ = ["Recorder", "live_recorders", "save_all", "save_on_exit"]
