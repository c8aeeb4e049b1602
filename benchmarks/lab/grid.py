"""The grid of paced cells: models x ratios x hosts; results in benchmarks/results/lab.json, a table on the screen.

    python -m benchmarks.lab.grid                                     everything (hours)
    python -m benchmarks.lab.grid --cells resnet50:0.5:2 vgg16:1:4    these (model:ratio:hosts)

A cell that was measured before is replaced, the others are kept. Ratios of medians are judged by the interval of the paired
turns: a target is met when the interval reaches it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from itertools import product
from typing import Any

from benchmarks import stats
from benchmarks.lab.cluster import LabError, cluster
from benchmarks.lab.models import MODELS

RATIOS, HOSTS = (0.25, 0.5, 1.0, 2.0), (2, 4)
MIB = {2: 32.0, 4: 16.0}
AGAINST = {"ddp_default": 0.94, "ddp_best_cap": 1.0, "hccl_default": 0.85}
BOUND_TARGET = 1.03


def judged(cell: dict[str, Any]) -> dict[str, Any]:
    """The ratios of one cell, with their intervals."""
    turns = cell["step_s"]
    ratios = {
        f"auto_over_{name}": stats.verdict([a / b for a, b in zip(turns["auto"], turns[name], strict=True)], target)
        for name, target in AGAINST.items()
    }
    if cell["bound_s"]:
        ratios["auto_over_bound"] = stats.verdict([a / cell["bound_s"] for a in turns["auto"]], BOUND_TARGET)
        ratios["measured_over_predicted"] = stats.summary([a / cell["predicted_s"] for a in turns["auto"]])
    return {**cell, "medians_s": {name: statistics.median(times) for name, times in turns.items()}, "ratios": ratios}


def line(name: str, cell: dict[str, Any]) -> str:
    """One row of the table."""
    ratios = cell["ratios"]
    cells = [
        f"{ratios[key]['median']:.3f}" if key in ratios else "-"
        for key in (*(f"auto_over_{n}" for n in AGAINST), "auto_over_bound", "measured_over_predicted")
    ]
    return f"{name:22} {1e3 * cell['medians_s']['auto']:8.1f} ms " + " ".join(f"{text:>12}" for text in cells)


def main() -> int:
    """Parse, measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", metavar="MODEL:RATIO:HOSTS")
    parser.add_argument("--rate", default="800mbit")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--caps", type=int, default=12)
    arguments = parser.parse_args()
    names = arguments.cells or [f"{model}:{ratio:g}:{hosts}" for model, ratio, hosts in product(MODELS, RATIOS, HOSTS)]
    path = stats.RESULTS / "lab.json"
    data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"cells": {}}
    data.update(machine=stats.machine(), rate=arguments.rate)
    heads = [*(f"/ {name}" for name in AGAINST), "/ bound", "/ predicted"]
    print(f"{'cell':22} {'auto':>11} " + " ".join(f"{head:>12}" for head in heads), flush=True)
    for name in names:
        model, ratio, hosts = name.split(":")
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.lab.cell", "--model", model, "--ratio", ratio]
        command += ["--mib", str(MIB[int(hosts)]), "--repeats", str(arguments.repeats), "--caps", str(arguments.caps)]
        try:
            with cluster(int(hosts), arguments.rate) as made:
                cell = judged(json.loads(made.run(command).strip().splitlines()[-1]))
        except LabError as error:
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            return 1
        data["cells"][name] = cell
        stats.save("lab", data)
        print(line(name, cell), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
