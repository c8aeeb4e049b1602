"""The engine: gradient order, flat buffers, readiness, launching reductions in order, finishing them."""

from gradweave.sync.engine import Engine
from gradweave.sync.options import EngineOptions

__all__ = ["Engine", "EngineOptions"]
