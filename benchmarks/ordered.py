"""The price of the ordered reduction: a segment's reduction in rank order against the backend's all-reduce.

Both reduce the same message in turn in the same processes; a repeat's figure is the ratio of the two medians.

    python -m benchmarks.ordered [--ranks 2 4] [--repeats 9]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

import gradweave as gw
from benchmarks import stats
from gradweave.model import Segment
from gradweave.reduce import Dense, Message, Ordered, Reducer
from gradweave.world.groups import as_group, private_group

MIB = 1 << 20
SIZES_MIB = (0.25, 4.0, 25.0)


def one_s(reducer: Reducer, message: Message, state: Any) -> float:
    """Seconds of one reduction, the slowest rank's."""
    dist.barrier()
    begin = time.perf_counter()
    reducer.start(message, state, message.size).wait()
    taken = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def worker(repeats: int, steps: int) -> None:
    """One rank."""
    torch.set_num_threads(1)
    gw.init()
    group = as_group()
    pg, gather = private_group(group, "bench"), private_group(group, "bench gather")
    found: dict[str, Any] = {}
    for size in SIZES_MIB:
        flat = torch.ones(int(size * MIB) // 4)
        message = Message(Segment(0, 0, 0, flat.numel() * 4), 0, flat, 0, pg, group.size, False)
        reducers: dict[str, Reducer] = {"dense": Dense(), "ordered": Ordered(gather)}
        states = {name: reducer.init(message) for name, reducer in reducers.items()}
        medians: dict[str, list[float]] = {name: [] for name in reducers}
        for _ in range(repeats):
            times: dict[str, list[float]] = {name: [] for name in reducers}
            for _ in range(steps):
                for name, reducer in reducers.items():
                    times[name].append(one_s(reducer, message, states[name]))
            for name in reducers:
                medians[name].append(statistics.median(times[name]))
        found[f"{size:g} MiB"] = medians
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    """Parse, run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments.repeats, arguments.steps)
        return
    data: dict[str, Any] = {"machine": stats.machine(), "ranks": {}}
    for ranks in arguments.ranks:
        options = ("--repeats", str(arguments.repeats), "--steps", str(arguments.steps))
        out = stats.output_of_ranks("benchmarks.ordered", ranks, *options)
        rows = {}
        for size, times in json.loads(out.strip().splitlines()[-1]).items():
            ratio = stats.summary([a / b for a, b in zip(times["ordered"], times["dense"], strict=True)])
            rows[size] = {"ratio": ratio, **{f"{name}_s": stats.summary(values) for name, values in times.items()}}
            dense, ordered = (1e3 * statistics.median(times[name]) for name in ("dense", "ordered"))
            print(
                f"{ranks} ranks, {size:>8}: ordered {ordered:7.2f} ms, all-reduce {dense:7.2f} ms, ratio {ratio['median']:.2f}"
            )
        data["ranks"][str(ranks)] = rows
    print(stats.save("ordered", data))


if __name__ == "__main__":
    main()
