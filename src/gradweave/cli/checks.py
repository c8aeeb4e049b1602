"""What this machine has for distributed training, and what it lacks.

Each check is one fact with a state: `ok`; `missing`, for something optional, with the way to get it; `unneeded`, for what
serves devices that this machine does not have; `failed`, for something that should work here and does not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from gradweave.cli.loopback import measure_loopback
from gradweave.cli.output import version
from gradweave.errors import CollectiveError

State = Literal["ok", "missing", "failed", "unneeded"]
TESTED = "tested with CPython 3.11 and torch 2.13"
# module, distribution, what it is for
OPTIONAL = (
    ("torch_npu", "torch_npu", "Ascend devices and HCCL", "install torch_npu from Huawei for your CANN version"),
    ("tensorboard", "tensorboard", "report --tensorboard", "pip install tensorboard"),
    ("sklearn", "scikit-learn", "the digits example", "pip install scikit-learn"),
    ("scipy", "scipy", "some tests", "pip install scipy"),
)


@dataclass(frozen=True)
class Check:
    """One fact: its area, name, state, detail, and the way out when it is missing or failed."""

    area: str
    name: str
    state: State
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)


def all_checks(loopback: bool = True) -> Iterator[Check]:
    """Yield every check, the quick ones first.

    Args:
        loopback: also measure an all-reduce between two processes (a few seconds).
    """
    yield Check("software", "gradweave", "ok", version())
    yield Check("software", "python", "ok", f"{platform.python_version()} ({sys.executable}); {TESTED}")
    yield Check("machine", "system", "ok", f"{platform.platform()}, {os.cpu_count()} cores")
    yield from _torch_checks()
    yield from _optional_packages()
    yield from _test_needs()
    if loopback and importlib.util.find_spec("torch") is not None:
        yield from _loopback_checks()


def _torch_checks() -> Iterator[Check]:
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        yield Check("software", "torch", "missing", f"training needs it ({error})", "pip install 'torch==2.13.0'")
        return
    yield Check("software", "torch", "ok", torch.__version__)
    available = dist.is_available()
    yield _backend("gloo", available and dist.is_gloo_available(), "CPU", True)
    yield _backend("nccl", available and dist.is_nccl_available(), "CUDA devices", has_device("nvidia"))
    yield _backend("hccl", importlib.util.find_spec("torch_npu") is not None, "Ascend devices", has_device("davinci"))
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    yield Check("machine", "devices", "ok", f"{count} CUDA: {names}" if count else "CPU only")


def has_device(driver: str, folder: Path = Path("/dev")) -> bool:
    """Whether the driver of an accelerator shows a device here: `nvidia` or `davinci` (Ascend), followed by a number."""
    return any(folder.glob(f"{driver}[0-9]*"))


def _backend(name: str, is_there: bool, devices: str, is_needed: bool) -> Check:
    if is_there:
        return Check("backends", name, "ok", f"for {devices}")
    if not is_needed:
        return Check("backends", name, "unneeded", f"for {devices}, of which there are none")
    return Check("backends", name, "missing", f"for {devices}", f"install a torch build with {name}")


def _optional_packages() -> Iterator[Check]:
    for module, distribution, purpose, fix in OPTIONAL:
        if importlib.util.find_spec(module) is None:
            if module == "torch_npu" and not has_device("davinci"):
                yield Check("optional packages", distribution, "unneeded", f"for {purpose}, of which there are none")
                continue
            yield Check("optional packages", distribution, "missing", f"for {purpose}", fix)
            continue
        try:
            found = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            found = "version unknown"
        yield Check("optional packages", distribution, "ok", f"{found}; for {purpose}")


def _test_needs() -> Iterator[Check]:
    """What the tests skip without. Only in a checkout: an installed package has no tests."""
    root = Path(__file__).resolve().parents[3]
    if not (root / "tests").is_dir() or not (root / "pyproject.toml").is_file():
        return
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    yield _need("browser", browser, "the test that opens the HTML report", "Debian, Ubuntu: apt-get install chromium")
    yield _need("GPU", _gpu(), "the tests of streams, events and device times", "run them where CUDA and torch for it are")


def _gpu() -> str | None:
    try:
        import torch
    except ImportError:
        return None
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _need(name: str, found: str | None, purpose: str, fix: str) -> Check:
    if found:
        return Check("test needs", name, "ok", f"{found}; for {purpose}")
    return Check("test needs", name, "missing", f"skipped without it: {purpose}", fix)


def _loopback_checks() -> Iterator[Check]:
    try:
        for speed in measure_loopback():
            size = f"{speed.size_bytes / 1024:.0f} KiB" if speed.size_bytes < 2**20 else f"{speed.size_bytes / 2**20:.0f} MiB"
            detail = f"{speed.median_s * 1e3:.3f} ms, {speed.bytes_per_s / 1e6:.0f} MB/s (2 processes, gloo, median)"
            yield Check("loopback all-reduce", size, "ok", detail)
    except CollectiveError as error:
        yield Check("loopback all-reduce", "gloo", "failed", error.what, error.fix or "")
