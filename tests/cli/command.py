"""Running `gradweave` as a process of its own, and finding what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "gradweave"]
WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch" or name.startswith("torch."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""


def environment(**extra: str) -> dict[str, str]:
    """An 80-column terminal without colours, one thread per process."""
    return {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **extra}


def gradweave(
    *args: str | Path, cwd: Path | None = None, timeout: float = 50, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run `gradweave` with the arguments to its end."""
    command = [*COMMAND, *map(str, args)]
    return subprocess.run(command, cwd=cwd, env=environment(**extra), capture_output=True, text=True, timeout=timeout)


def gradweave_without_torch(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """The same in an interpreter that cannot import torch."""
    code = f"{WITHOUT_TORCH}\nsys.argv = {['gradweave', *map(str, args)]!r}\nfrom gradweave.cli import main\nmain()"
    return subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=50)


def processes_with(token: str) -> list[int]:
    """Ids of running processes whose environment holds the token."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes() and "Z" not in (entry / "stat").read_text().split()[2]:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(condition: object, timeout: float = 30.0) -> bool:
    """Wait until the function gives something true."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.1)
    return False
