"""The package's front door: names arrive when used, and only training needs torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import gradweave as gw
from gradweave.errors import MissingDependencyError

NEEDS_TORCH = {"optim", "collectives", "world"}

BLOCK_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""

IMPORT_PURE_PACKAGES = """
import importlib, importlib.util, pkgutil
found = ["gradweave", "gradweave.errors", "gradweave.world", "gradweave.world.names"]
for name in ("model", "split", "hccl", "trace", "tune", "plan", "cli"):
    if importlib.util.find_spec(f"gradweave.{name}") is None:
        continue
    package = importlib.import_module(f"gradweave.{name}")
    found += [package.__name__, *(m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + "."))]
for name in found:
    importlib.import_module(name)
assert "torch" not in sys.modules
print(len(found))
"""

USE_THE_PURE_PARTS = """
import gradweave as gw
gw.set_split_strategy_by_size([60, 40])
assert gw.get_split_strategy().is_set and gw.split.SplitStrategy is gw.SplitStrategy
try:
    gw.DistributedOptimizer
except gw.MissingDependencyError as error:
    print(error)
try:
    gw.get_split_strategy(7)
except gw.GroupError as error:
    print(error)
"""


def run_python(code: str) -> str:
    """Run code in a fresh interpreter that imports the package from where this one does; return what it prints."""
    path = os.pathsep.join([str(Path(gw.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_pure_package_imports_without_torch() -> None:
    assert int(run_python(BLOCK_TORCH + IMPORT_PURE_PACKAGES)) > 20


def test_without_torch_splits_work_and_training_says_what_to_install() -> None:
    printed = run_python(BLOCK_TORCH + USE_THE_PURE_PARTS).splitlines()
    assert "DistributedOptimizer needs torch" in printed[0] and "pip install 'torch==2.13.0'" in printed[0]
    assert printed[1].startswith("7 is not a group. Rule:")


def test_importing_the_package_alone_imports_neither_torch_nor_numpy() -> None:
    assert run_python("import sys, gradweave; print('torch' in sys.modules, 'numpy' in sys.modules)").split() == ["False"] * 2


def test_every_public_name_has_a_home_and_is_listed() -> None:
    assert sorted([*gw._HOME_OF, "__version__"]) == sorted(gw.__all__) == gw.__all__
    assert set(gw.__all__) <= set(dir(gw))


@pytest.mark.parametrize("name", [name for name, home in gw._HOME_OF.items() if home not in NEEDS_TORCH])
def test_public_names_of_pure_packages_arrive(name: str) -> None:
    assert getattr(gw, name).__name__ == name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(gw, "no_such_name") and not hasattr(gw, "_private")
    with pytest.raises(AttributeError, match="module 'gradweave' has no attribute 'no_such_name'"):
        _ = gw.no_such_name
    with pytest.raises(ImportError):
        exec("from gradweave import no_such_name")


def test_packages_are_attributes() -> None:
    assert run_python("import gradweave as gw; print(gw.split.__name__, gw.model.__name__)").split() == [
        "gradweave.split",
        "gradweave.model",
    ]


def test_a_failed_import_that_is_not_torchs_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'libmissing'", name="libmissing")

    monkeypatch.setattr(gw.importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="libmissing") as caught:
        gw.__getattr__("DistributedOptimizer")
    assert not isinstance(caught.value, MissingDependencyError)
