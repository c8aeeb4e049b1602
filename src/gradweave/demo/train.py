"""The demo's training script: what a user writes, with three phases of different splits.

Every process trains the same GPT on its own batches; the only lines that concern Gradweave are `gw.init`, the wrapped optimizer
and the two `set_split_strategy` calls. Each phase trains for a third of the time, prints the iteration table of its last steps
and leaves one trace per rank.

    phase 1: default split -> phase 2: by size -> phase 3: by index; validation loss before and after

Started by `gradweave demo`, or by hand: torchrun --nproc-per-node 2 -m gradweave.demo.train --out DIR
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gradweave as gw
from gradweave.demo.corpus import Corpus, draw, load_corpus
from gradweave.demo.gpt import GPT, next_byte_loss
from gradweave.demo.progress import Progress
from gradweave.trace.files import load_dir

BATCH = 8
CALIBRATION_STEPS = 6
SHARES = [60, 20, 20]


def main(arguments: list[str] | None = None) -> None:
    """Train, and leave `result.json` and the folder `traces` in `--out`."""
    options = parse(arguments)
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # ends at once on Ctrl-C: a process that waits for a peer runs no Python handler
    gw.init()
    torch.manual_seed(options.seed)
    corpus = load_corpus()
    model = GPT(width=options.width, heads=options.width // 32, layers=options.layers)
    optimizer = gw.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=3e-3), model)

    progress = Progress(enabled=gw.rank() == 0)
    start_loss = validate(model, corpus)
    progress.say(f"validation loss {start_loss:.3f} before training")
    generator = torch.Generator().manual_seed(options.seed + 1 + gw.rank())
    steps, phases = None, []
    for number, (name, choose) in enumerate(the_phases(optimizer), start=1):
        choose()
        if steps is None:
            steps = calibrate(model, optimizer, corpus, generator, options.seconds / 3)
        phases.append(train(model, optimizer, corpus, generator, steps, name, progress))
        show_iterations(optimizer, options.out / "traces", f"{number} {name}", progress)
    end_loss = validate(model, corpus)
    progress.say(f"validation loss {start_loss:.3f} -> {end_loss:.3f} (nats per byte, files never seen in training)")
    if gw.rank() == 0:
        result = {
            "processes": gw.size(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "validation_loss": {"start": start_loss, "end": end_loss},
            "phases": phases,
        }
        (options.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    gw.shutdown()


def the_phases(optimizer: gw.DistributedOptimizer) -> list[tuple[str, Callable[[], None]]]:
    """Name of each phase and what chooses its split."""

    def by_idx() -> None:
        last = optimizer.segments[-1].last
        gw.set_split_strategy_by_idx([last // 4, last // 2, last - 3, last])

    return [
        ("default split", lambda: None),
        (f"by size {SHARES}", lambda: gw.set_split_strategy_by_size(SHARES)),
        ("by index", by_idx),
    ]


def train(
    model: GPT,
    optimizer: gw.DistributedOptimizer,
    corpus: Corpus,
    generator: torch.Generator,
    steps: int,
    name: str,
    progress: Progress,
) -> dict[str, Any]:
    """Train for `steps` steps and say how it went."""
    losses, start = [], time.perf_counter()
    with progress.phase(name, steps) as advance:
        for _ in range(steps):
            loss = next_byte_loss(model, draw(corpus.train, BATCH, model.context, generator))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            advance(losses[-1], len(losses) * BATCH * model.context * gw.size() / (time.perf_counter() - start))
    elapsed_s = time.perf_counter() - start
    return {
        "name": name,
        "steps": steps,
        "segments": [[segment.first, segment.last] for segment in optimizer.segments],
        "loss": {"start": losses[0], "end": sum(losses[-5:]) / len(losses[-5:])},
        "step_s": elapsed_s / steps,
        "tokens_per_s": steps * BATCH * model.context * gw.size() / elapsed_s,
    }


def show_iterations(optimizer: gw.DistributedOptimizer, folder: Path, label: str, progress: Progress) -> None:
    """Keep this rank's trace of the phase, and show the table of all ranks'."""
    optimizer.recorder.save(folder, label=label)
    optimizer.recorder.clear()
    gw.barrier()
    if gw.rank() == 0:
        progress.table(load_dir(folder), label)


def calibrate(
    model: GPT, optimizer: gw.DistributedOptimizer, corpus: Corpus, generator: torch.Generator, seconds: float
) -> int:
    """Number of steps that take `seconds` here, equal on all ranks; costs a few training steps."""
    for step in range(CALIBRATION_STEPS):
        if step == 1:
            start = time.perf_counter()  # the first step is slower than the others
        next_byte_loss(model, draw(corpus.train, BATCH, model.context, generator)).backward()
        optimizer.step()
        optimizer.zero_grad()
    step_s = torch.tensor((time.perf_counter() - start) / (CALIBRATION_STEPS - 1))
    slowest_s = float(gw.allreduce(step_s, op="max"))
    return max(4, int(seconds / slowest_s))


@torch.no_grad()
def validate(model: GPT, corpus: Corpus, batches: int = 8) -> float:
    """Mean loss (nats per byte) on the same held-out windows every time, shared out between the ranks."""
    generator = torch.Generator().manual_seed(1_000 + gw.rank())
    losses = [next_byte_loss(model, draw(corpus.validation, BATCH, model.context, generator)) for _ in range(batches)]
    return float(gw.allreduce(torch.stack(losses).mean(), op="average"))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(description="Train a small GPT on the standard library's sources.")
    parser.add_argument("--out", type=Path, required=True, help="folder for result.json and traces")
    parser.add_argument("--seconds", type=float, default=60.0, help="about how long to train in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--width", type=int, default=160, help="width of the model, a multiple of 32")
    parser.add_argument("--layers", type=int, default=4)
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    return options


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
