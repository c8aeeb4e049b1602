"""What the library itself costs: step time and peak memory against DistributedDataParallel, and the recorder.

On loopback without a link limit, 2 ranks, the same segments on both sides (DDP's buckets of 25 MiB, read from its logging
data). Time: all variants live in one process and take their steps in turn, the order rotating; a repeat's figure is the median
over its steps, the ratio is taken within the repeat. Memory: each variant in fresh processes, the peak of resident memory above
what the imports take (which is given too). Recorder: the cost of its calls in one iteration, measured directly, over the step;
and steps with it on and off in turn.

    python -m benchmarks.overhead [--repeats 9] [--steps 16] [--models gpt conv]
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import gradweave as gw
from benchmarks import stats
from benchmarks.models import MODELS
from gradweave.model import GradientInfo, Segment
from gradweave.trace.recorder import Recorder

TIME_TARGET, RECORDER_TARGET, MEMORY_TARGET = 1.02, 1.01, 1.0
CAP_MIB = 25
# Imported before memory is read, in both variants: what is measured is what a training takes, not what a module does.
LOADED_AT_FIRST_USE = ("torch._dynamo", "gradweave.optim.optimizer", "gradweave.sync.engine", "gradweave.collectives.runtime")
Step = Callable[[], None]


def ddp_boundaries(make: Callable[[], nn.Module], loss: Callable[[nn.Module], torch.Tensor]) -> list[int]:
    """Last indices of DDP's buckets, as rebuilt after its first steps."""
    model = nn.parallel.DistributedDataParallel(make(), bucket_cap_mb=CAP_MIB, gradient_as_bucket_view=True)
    for _ in range(3):
        loss(model).backward()
        model.zero_grad()
    buckets = model._get_ddp_logging_data()["rebuilt_per_bucket_param_indices"].split(", ")
    ends, total = [], 0
    for bucket in buckets:
        total += len(bucket.split())
        ends.append(total - 1)
    return ends


def ddp_step(make: Callable[[], nn.Module], loss: Callable[[nn.Module], torch.Tensor]) -> Step:
    """A step of torch's DDP."""
    model = nn.parallel.DistributedDataParallel(make(), bucket_cap_mb=CAP_MIB, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return _step(model, optimizer, loss)


def our_step(make: Callable[[], nn.Module], loss: Callable[[nn.Module], torch.Tensor], ends: list[int], record: bool) -> Step:
    """A step of DistributedOptimizer with the same segments."""
    model = make()
    optimizer = gw.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), model, strategy=ends, record=record
    )
    return _step(model, optimizer, loss)


def our_ddp_step(make: Callable[[], nn.Module], loss: Callable[[nn.Module], torch.Tensor], ends: list[int]) -> Step:
    """A step of our drop-in with the same segments."""
    model = gw.DistributedDataParallel(make(), strategy=ends)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return _step(model, optimizer, loss)


def _step(model: nn.Module, optimizer: Any, loss: Callable[[nn.Module], torch.Tensor]) -> Step:
    def step() -> None:
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()

    return step


def timed(name: str, repeats: int, steps: int) -> dict[str, Any]:
    """Interleaved step times of all variants, on every rank alike."""
    make, make_loss = MODELS[name]
    loss = make_loss(dist.get_rank())
    ends = ddp_boundaries(make, loss)
    variants = {
        "ddp": ddp_step(make, loss),
        "ours": our_step(make, loss, ends, record=True),
        "ours_no_recorder": our_step(make, loss, ends, record=False),
        "ours_ddp": our_ddp_step(make, loss, ends),
    }
    for step in variants.values():
        step(), step(), step()
    medians: dict[str, list[float]] = {key: [] for key in variants}
    keys = list(variants)
    for repeat in range(repeats):
        times: dict[str, list[float]] = {key: [] for key in variants}
        for nth in range(steps):
            for key in _rotated(keys, repeat * steps + nth):
                dist.barrier()
                begin = time.perf_counter()
                variants[key]()
                times[key].append(time.perf_counter() - begin)
        for key in keys:
            medians[key].append(statistics.median(times[key]))
        if dist.get_rank() == 0:
            print(
                f"{name} repeat {repeat + 1}/{repeats}: " + ", ".join(f"{k} {1e3 * v[-1]:.1f} ms" for k, v in medians.items()),
                flush=True,
            )
    return {"segments": ends, "step_s": medians}


def _rotated(keys: list[str], by: int) -> list[str]:
    """Rotate, and reverse every other time, so that each variant follows each other one equally often."""
    cut = by % len(keys)
    order = keys[cut:] + keys[:cut]
    return order[::-1] if (by // len(keys)) % 2 else order


def peak_memory(name: str, variant: str) -> tuple[float, float]:
    """Peak resident memory (MiB) of a training of 6 steps in this process: what it adds to the imports, and in all."""
    for module in LOADED_AT_FIRST_USE:
        importlib.import_module(module)
    imported = _status_mib("VmRSS")
    make, make_loss = MODELS[name]
    loss = make_loss(dist.get_rank())
    ends = [int(end) for end in os.environ["BENCH_ENDS"].split(",")]
    step = {"ddp": lambda: ddp_step(make, loss), "ours": lambda: our_step(make, loss, ends, True)}[variant]()
    for _ in range(6):
        step()
    return _status_mib("VmHWM") - imported, _status_mib("VmHWM")


def _status_mib(field: str) -> float:
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text()).group(1)) / 1024  # type: ignore[union-attr]


def recorder_cost(gradients: int, segments: int) -> float:
    """Seconds that the recorder's calls take in one iteration of so many gradients and segments."""
    recorder = Recorder(rank=0, world_size=2, group="world", backend="gloo", label="cost")
    recorder.set_gradients([GradientInfo(f"p{i}", (1,), "float32", 4) for i in range(gradients)])
    segment, rounds = Segment(0, 0, 0, 4), 400
    begin = time.perf_counter()
    for step in range(rounds):
        recorder.begin(step)
        recorder.fp_start(), recorder.fp_end()
        for index in range(gradients):
            if recorder.enabled:
                recorder.ready[index] = time.perf_counter()
        tokens = [recorder.launched(segment, 4, "float32") for _ in range(segments)]
        for token in tokens:
            recorder.finished(token)
        recorder.bp_end()
        recorder.iteration_end((0,), True)
    return (time.perf_counter() - begin) / rounds


def worker(arguments: argparse.Namespace) -> None:
    """One rank."""
    torch.set_num_threads(1)
    gw.init()
    if arguments.memory:
        values = torch.tensor(peak_memory(arguments.models[0], arguments.memory))
        dist.all_reduce(values, dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(f"PEAK {values[0].item()} {values[1].item()}", flush=True)
    else:
        name = arguments.models[0]
        result = timed(name, arguments.repeats, arguments.steps)
        gradients = sum(1 for _ in MODELS[name][0]().parameters())
        result["recorder_s"] = recorder_cost(gradients, len(result["segments"]))
        if dist.get_rank() == 0:
            stats.save(f".overhead_{name}", result)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # torch's own DDP aborts now and then while the interpreter is torn down; the figures are out


def launch(*arguments: str, ends: list[int] | None = None) -> str:
    """Run this module on 2 ranks and return what it printed."""
    env = {"BENCH_ENDS": ",".join(map(str, ends or []))}
    if "--memory" in arguments:
        env["MALLOC_MMAP_THRESHOLD_"] = "65536"  # tensors return to the system: resident memory counts what lives
    return stats.output_of_ranks("benchmarks.overhead", 2, *arguments, **env)


def report(name: str, repeats: int, steps: int) -> dict[str, Any]:
    """Everything about one model."""
    import json

    print(launch("--models", name, "--repeats", str(repeats), "--steps", str(steps)), end="", flush=True)
    scratch = stats.RESULTS / f".overhead_{name}.json"
    timing = json.loads(scratch.read_text())
    scratch.unlink()
    times = timing["step_s"]
    ratio = lambda a, b: [x / y for x, y in zip(times[a], times[b], strict=True)]  # noqa: E731
    peaks: dict[str, list[float]] = {"ddp": [], "ours": []}
    totals: dict[str, list[float]] = {"ddp": [], "ours": []}
    for _ in range(repeats):
        for variant in peaks:
            out = launch("--models", name, "--memory", variant, ends=timing["segments"])
            added, total = re.search(r"PEAK ([\d.]+) ([\d.]+)", out).groups()  # type: ignore[union-attr]
            peaks[variant].append(float(added))
            totals[variant].append(float(total))
    memory = [a / b for a, b in zip(peaks["ours"], peaks["ddp"], strict=True)]
    return {
        "segments": timing["segments"],
        "step_s": {key: stats.summary(value) for key, value in times.items()},
        "optimizer_over_ddp": stats.verdict(ratio("ours", "ddp"), TIME_TARGET),
        "drop_in_over_ddp": stats.verdict(ratio("ours_ddp", "ddp"), TIME_TARGET),
        "recorder_on_over_off": stats.verdict(ratio("ours", "ours_no_recorder"), RECORDER_TARGET),
        "recorder_direct_share": timing["recorder_s"] / statistics.median(times["ours"]),
        "peak_mib": {key: stats.summary(value) for key, value in peaks.items()},
        "peak_mib_with_imports": {key: stats.summary(value) for key, value in totals.items()},
        "peak_memory_over_ddp": stats.verdict(memory, MEMORY_TARGET),
        "peak_mib_more_than_ddp": stats.summary([a - b for a, b in zip(totals["ours"], totals["ddp"], strict=True)]),
    }


def main() -> None:
    """Parse, run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", choices=["ddp", "ours"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
        return
    data: dict[str, Any] = {"machine": stats.machine(), "ranks": 2, "repeats": arguments.repeats, "steps": arguments.steps}
    data["models"] = {name: report(name, arguments.repeats, arguments.steps) for name in arguments.models}
    path = stats.save("overhead", data)
    for name, result in data["models"].items():
        for key in ("optimizer_over_ddp", "drop_in_over_ddp", "recorder_on_over_off", "peak_memory_over_ddp"):
            v = result[key]
            low, high = v["interval_95"]
            print(f"{name:5} {key:22} {v['median']:.4f} [{low:.4f}, {high:.4f}] target {v['target']} {v['verdict']}")
        print(f"{name:5} peak memory: {result['peak_mib_more_than_ddp']['median']:+.2f} MiB")
        print(f"{name:5} recorder, measured directly: {100 * result['recorder_direct_share']:.4f} % of the step")
    print(path)


if __name__ == "__main__":
    main()
