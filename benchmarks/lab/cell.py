"""One cell of the grid: a paced model at one communication/compute ratio on one cluster, all contenders in the same processes.

    1. the time of the whole gradient in one message on this link; compute = that / ratio
    2. a sweep of DDP's caps, a few steps each; the best is taken and measured anew below
    3. strategy="auto" tunes itself
    4. contenders take turns of a few steps, A B C D A B C D; ratios are taken within a turn

DDP's default caps (25 MiB, the first 1 MiB) are scaled as the model is, so that it has as many buckets as on the real one.
Started by `benchmarks.lab.grid` on every rank of a cluster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gradweave as gw
from benchmarks.lab.models import MODELS, total_bytes
from benchmarks.lab.paced import Paced

MIB = 1 << 20
Step = Callable[[], None]


def one_message_s(n_bytes: int, repeats: int = 5) -> float:
    """Median time of one all-reduce of so many bytes, the slowest rank's."""
    buffer, taken = torch.zeros(n_bytes // 4), []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(buffer)
        taken.append(time.perf_counter() - begin)
    return agreed(statistics.median(taken))


def agreed(seconds: float) -> float:
    """The largest of all ranks' values."""
    value = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(value, dist.ReduceOp.MAX)
    return float(value)


def contender(make: Callable[[], nn.Module], wrap: Callable[[nn.Module], nn.Module]) -> Step:
    """A step of a wrapped model."""
    model = wrap(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.zeros(1, requires_grad=True)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def ours(make: Callable[[], nn.Module], strategy: Any) -> tuple[Step, Any]:
    """A step of DistributedOptimizer."""
    model = make()
    optimizer = gw.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), model, strategy=strategy, broadcast_parameters=False
    )
    x = torch.zeros(1, requires_grad=True)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, optimizer


def timed(step: Step, count: int) -> list[float]:
    """Times of steps, each the slowest rank's."""
    dist.barrier()
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return [agreed(at) for at in taken]


def ddp(caps_mib: list[float]) -> Callable[[nn.Module], nn.Module]:
    """Torch's DDP with caps in MiB."""
    return lambda model: nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb_list=caps_mib, gradient_as_bucket_view=True, init_sync=False
    )


def sweep(make: Callable[[], nn.Module], total_mib: float, count: int, steps: int) -> tuple[float, dict[str, float]]:
    """The cap whose median step is shortest, and all medians."""
    found = {}
    for k in range(count):
        cap = max(0.02, 0.01 * total_mib) * (100 ** (k / (count - 1)))
        step = contender(make, ddp([cap]))
        timed(step, 2)
        found[cap] = statistics.median(timed(step, steps))
    best = min(found, key=found.__getitem__)
    return best, {f"{cap:.3f}": seconds for cap, seconds in found.items()}


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure the cell."""
    layers = MODELS[arguments.model]()
    scale = min(1.0, arguments.mib * MIB / total_bytes(layers))
    n_bytes = int(total_bytes(layers) * scale)
    one_message_s(n_bytes, 2)
    whole_s = one_message_s(n_bytes)
    compute_s = whole_s / arguments.ratio
    make = lambda: Paced(layers, scale, compute_s)  # noqa: E731
    cap, caps = sweep(make, n_bytes / MIB, arguments.caps, arguments.sweep_steps)
    tuned, optimizer = ours(make, gw.Auto(watch=False, verbose=arguments.verbose))
    tuning_steps = 0
    while not optimizer._engine.tuner.settled:
        tuned()
        tuning_steps += 1
    decision = optimizer._engine.tuner.decision
    contenders: dict[str, Step] = {
        "auto": tuned,
        "ddp_default": contender(make, ddp([1.0 * scale, 25.0 * scale])),
        "ddp_best_cap": contender(make, ddp([cap])),
        "hccl_default": ours(make, "hccl_default")[0],
    }
    for step in contenders.values():
        timed(step, 3)
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for repeat in range(arguments.repeats):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            turns[name].append(statistics.median(timed(contenders[name], arguments.steps + 1)[1:]))
    return {
        "model": arguments.model,
        "hosts": dist.get_world_size(),
        "ratio": arguments.ratio,
        "scale": scale,
        "bytes": n_bytes,
        "whole_gradient_s": whole_s,
        "compute_s": compute_s,
        "caps_s": caps,
        "best_cap_mib": cap,
        "tuning_steps": tuning_steps,
        "tuner": list(optimizer._engine.tuner.lines),
        "plan": [segment.last for segment in optimizer.segments],
        "segment_bytes": [segment.size_bytes for segment in optimizer.segments],
        "predicted_s": None if decision is None else decision.predicted.step_s,
        "bound_s": None if decision is None else decision.bound_s,
        "step_s": turns,
    }


def main() -> None:
    """One rank of a cell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), required=True)
    parser.add_argument("--ratio", type=float, required=True, help="time of the whole gradient on the link / compute")
    parser.add_argument("--mib", type=float, default=32.0, help="gradients are scaled to this size")
    parser.add_argument("--caps", type=int, default=12)
    parser.add_argument("--sweep-steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gw.init(timeout=120)
    result = run(arguments)
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's own DDP aborts now and then while the interpreter is torn down; the figures are out


if __name__ == "__main__":
    main()
