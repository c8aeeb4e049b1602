"""The pure packages import without torch, and packages import only downwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "gradweave"
PURE = ("errors", "model", "split", "tune", "plan", "advise", "trace", "cli", "hccl")
BLOCK = """
import importlib, sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
for name in sys.argv[1:]:
    importlib.import_module(name)
print(len(sys.argv) - 1)
"""


def modules(package: str) -> list[str]:
    """Names of all modules of a package or of one module."""
    paths = [SOURCE / f"{package}.py", *sorted((SOURCE / package).rglob("*.py"))]
    parts = [path.relative_to(SOURCE.parent).with_suffix("").parts for path in paths if path.is_file()]
    return [".".join(part for part in names if part != "__init__") for names in parts]


@pytest.mark.parametrize("package", [name for name in PURE if modules(name)])
def test_package_imports_without_torch(package):
    names = modules(package)
    result = subprocess.run([sys.executable, "-c", BLOCK, *names], capture_output=True, text=True, timeout=50)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.strip() == str(len(names))


def test_the_block_itself_works():
    result = subprocess.run([sys.executable, "-c", BLOCK, "torch"], capture_output=True, text=True, timeout=50)
    assert result.returncode != 0 and "No module named 'torch'" in result.stderr


def test_what_needs_torch_says_so_by_name():
    code = (
        BLOCK.split("for name")[0]
        + "import gradweave as gw\ntry:\n    gw.DistributedOptimizer\nexcept gw.MissingDependencyError as e:\n    print(e)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert "gradweave.DistributedOptimizer needs torch" in result.stdout, result.stderr
    assert "pip install 'torch==2.13.0'" in result.stdout, "the package itself is on no index"
