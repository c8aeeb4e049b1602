"""The installed version, in a module that imports nothing of the package."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("gradweave")
except PackageNotFoundError:  # sources on the path, not installed
    __version__ = "0.1.0"
