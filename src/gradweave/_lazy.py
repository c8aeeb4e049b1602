"""Names of a package that are imported when they are first used: what nobody asks for costs no time and no memory."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def attribute_loader(package: str, home_of: Mapping[str, str]) -> Callable[[str], Any]:
    """A module `__getattr__` for `package`.

    Args:
        package: the package's `__name__`.
        home_of: public name -> module inside the package that defines it.

    Example:
        >>> attribute_loader("gradweave.model", {"Segment": "segment"})("Segment").__name__
        'Segment'
    """

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)

    return load
