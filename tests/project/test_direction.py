"""Packages import only from packages under them: one direction, so that each part can be read and tested alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "gradweave"
FLOORS = (
    ("errors", "_lazy", "_version"),
    ("model",),
    ("world",),
    ("collectives",),
    ("split",),
    ("trace",),
    ("tune",),
    ("reduce",),
    ("sync",),
    ("optim",),
    ("hccl",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}
ROOT = "gradweave"
MAY_IMPORT_ROOT = {"demo", "cli"}


def imported(source: str, module: str) -> Iterator[tuple[int, str]]:
    """Line and package ("gradweave" for the root itself) of every import of Gradweave, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".")[: -node.level] if node.level else []
            base = ".".join([*parents, node.module] if node.module else parents)
            found = [f"{base}.{alias.name}" for alias in node.names] if base == ROOT else [base]
        else:
            continue
        for name in found:
            head, _, rest = name.partition(".")
            if head == ROOT:
                yield node.lineno, rest.partition(".")[0] if rest.partition(".")[0] in LEVEL else ROOT


def upward(source: str, module: str) -> list[str]:
    """What is wrong with a module's imports."""
    package = module.split(".")[1]
    wrong = []
    for line, target in imported(source, module):
        allowed = package in MAY_IMPORT_ROOT if target == ROOT else LEVEL[target] < LEVEL[package] or target == package
        if not allowed:
            wrong.append(f"{module}:{line} imports {target}")
    return wrong


def modules() -> list[tuple[str, Path]]:
    """Dotted name and file of every module but the root package's own, which offers everything."""
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]
    return [(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts), path) for path in paths]


def test_every_package_imports_only_what_stands_under_it() -> None:
    assert [line for name, path in modules() for line in upward(path.read_text(), name)] == []


def test_every_package_has_its_place_in_the_order() -> None:
    assert {name.split(".")[1] for name, _ in modules()} - set(LEVEL) == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gradweave.model.segment", "from gradweave.sync import Engine"),
        ("gradweave.reduce.cast", "def f():\n    import gradweave.sync.engine"),
        ("gradweave.split.api", "if TYPE_CHECKING:\n    from gradweave.trace.recorder import Recorder"),
        ("gradweave.world.names", "from gradweave import optim"),
        ("gradweave.world.names", "from ..optim import ddp"),
        ("gradweave.sync.engine", "import gradweave as gw"),
        ("gradweave.sync.engine", "from gradweave import DistributedOptimizer"),
        ("gradweave.errors", "from gradweave.model import Segment"),
    ],
)
def test_an_import_upwards_is_found_in_every_form(module: str, source: str) -> None:
    assert len(upward(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gradweave.sync.engine", "from gradweave.reduce import Dense"),
        ("gradweave.sync.engine", "from gradweave.sync.table import Slot"),
        ("gradweave.sync.engine", "from .table import Slot\nfrom . import ready\nimport torch"),
        ("gradweave.demo.train", "import gradweave as gw"),
        ("gradweave.split.rules", "from gradweave._version import __version__"),
    ],
)
def test_an_import_downwards_or_sideways_is_left_alone(module: str, source: str) -> None:
    assert upward(source, module) == []
