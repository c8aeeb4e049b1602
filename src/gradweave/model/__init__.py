"""Plain data that every other package speaks of: gradients, segments, the events of an iteration. Pure Python."""

from gradweave.model.events import CollectiveEvent, Iteration, Trace
from gradweave.model.segment import GradientInfo, Segment, segments_from_boundaries

__all__ = ["CollectiveEvent", "GradientInfo", "Iteration", "Segment", "Trace", "segments_from_boundaries"]
