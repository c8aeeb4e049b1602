"""Medians, spreads and intervals of paired ratios.

A target on a ratio is met when the 95 % interval of the paired ratio reaches it: the interval is a bootstrap of the median over
the repeats, each of which is a median over interleaved steps.
"""

from __future__ import annotations

import json
import os
import platform
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def summary(values: list[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    ordered = sorted(values)
    quartiles = statistics.quantiles(ordered, n=4) if len(ordered) > 1 else [ordered[0]] * 3
    return {
        "median": statistics.median(ordered),
        "q1": quartiles[0],
        "q3": quartiles[2],
        "min": ordered[0],
        "max": ordered[-1],
        "n": len(ordered),
    }


def interval_95(values: list[float], draws: int = 4000) -> tuple[float, float]:
    """Bootstrap interval of the median (seeded)."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws) - 1]


def verdict(ratios: list[float], target: float) -> dict[str, Any]:
    """The ratio's summary, its interval and whether the target is met, open or missed."""
    low, high = interval_95(ratios)
    met = "met" if low <= target else "missed"
    clear = "clearly" if high <= target or low > target else "within noise"
    return {**summary(ratios), "interval_95": [low, high], "target": target, "verdict": f"{met} ({clear})"}


def output_of_ranks(module: str, ranks: int, *arguments: str, **env: str) -> str:
    """Run a benchmark's module on so many ranks with torchrun, one thread each, and return what it printed on stdout."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += ["-m", module, "--worker", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def machine() -> dict[str, Any]:
    """What ran."""
    import torch

    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "backend": "gloo",
        "load_before": os.getloadavg()[0],
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def save(name: str, data: dict[str, Any]) -> Path:
    """Write `results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path
