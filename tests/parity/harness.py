"""One parity case on one rank: train through a wrapper, train the single process, compare.

    reference   parameters after STEPS optimizer steps of one process on the full batch
    formula     the same with each rank's gradients averaged by hand: sum over ranks of (g_r / (ranks * micro-batches)), in the
                reduction dtype. At world size 2 addition has one order, so the wrappers must give exactly these bits.

Micro-batch j on rank r is slice j * ranks + r of the full batch; slices are equal, so the mean of means is the mean.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import gradweave as gw
from tests.parity.cases import Case, strategy_of
from tests.parity.models import OPTIMIZERS, RECIPES, Batch, Recipe, SyncedBatchNorm

STEPS = 3
SLICE = 4
CASTS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "complex64": None}


@dataclass(frozen=True)
class Result:
    """What one rank found. Distances are relative to the largest magnitude of each parameter, the worst parameter counts.

    Attributes:
        reference: distance of our parameters to the single process'.
        formula: distance to the formula's; None where statistics cross ranks.
        buffers: distance of the buffers to those of the replica that saw this rank's data (under DDP: rank 0's).
        moved: distance to the start: a case in which nothing moves shows nothing.
        bits, formula_bits: digests of the parameters.
        segments, gradients: how many travelled.
    """

    reference: float
    formula: float | None
    buffers: float
    moved: float
    bits: str
    formula_bits: str | None
    segments: int
    gradients: int


def run_cases(rank: int, world_size: int, cases: list[Case]) -> list[Result | str]:
    """Run cases one after the other; stops at the first that raises, whose place holds the error."""
    from gradweave import world

    results: list[Result | str] = []
    for case in cases:
        try:
            results.append(_run(rank, case))
        except Exception as error:
            return [*results, f"{type(error).__name__}: {error}"]
        world.reset_registries()
    return results


def _run(rank: int, case: Case) -> Result:
    model = fresh(case)
    segments = _train_wrapped(model, case, rank)
    common = replace(case, split="default", overlap=True)
    single, replicas = _references(common)
    by_hand = replicas[0] if replicas else None
    per_rank = RECIPES[case.model].reference == "per_rank"
    seen = replicas[0 if case.wrapper == "ddp" else rank] if replicas else model
    buffers_count = rank == 0 or case.wrapper == "optimizer"
    return Result(
        reference=distance(model.parameters(), (by_hand if per_rank and by_hand else single).parameters()),
        formula=distance(model.parameters(), by_hand.parameters()) if by_hand else None,
        buffers=distance(model.buffers(), seen.buffers()) if buffers_count else 0.0,
        moved=distance(fresh(case).parameters(), model.parameters()),
        bits=digest(model),
        formula_bits=digest(by_hand) if by_hand else None,
        segments=segments,
        gradients=sum(1 for _ in model.parameters()),
    )


@functools.lru_cache(maxsize=64)
def _references(case: Case) -> tuple[nn.Module, list[nn.Module]]:
    """The single process and the replicas; they do not depend on split and overlap, so each pair is trained once."""
    recipe = RECIPES[case.model]
    replicas = [] if recipe.reference == "per_micro" else _train_replicas(case, recipe)
    return _train_single(case, recipe), replicas


def fresh(case: Case) -> nn.Module:
    """The model as every run starts it."""
    torch.manual_seed(7)
    model = RECIPES[case.model].make()
    cast = CASTS[case.dtype]
    return model if cast is None else model.to(cast)


def batches(case: Case) -> Iterator[list[Batch]]:
    """Per step the slices of the full batch."""
    generator = torch.Generator().manual_seed(11)
    cast = CASTS[case.dtype]
    for _ in range(STEPS):
        full = RECIPES[case.model].data(case.world * case.accumulate * SLICE, generator)
        if cast is not None:
            full = tuple(t.to(cast) if t.is_floating_point() else t for t in full)
        yield list(zip(*(t.split(SLICE) for t in full), strict=True))


# -- the three runs ----------------------------------------------------------------------------------------------------------


def _train_wrapped(model: nn.Module, case: Case, rank: int) -> int:
    """Train through the wrapper; returns the number of segments. DDP's users scale the loss of a micro-batch themselves."""
    for module in model.modules():
        if isinstance(module, SyncedBatchNorm):
            module.ranks = case.world
    forward, optimizer, wrapper = _wrap(model, case)
    ddp = case.wrapper == "ddp"
    for slices in batches(case):
        for micro in range(case.accumulate):
            waits = ddp and micro < case.accumulate - 1
            with forward.no_sync() if waits else contextlib.nullcontext():
                loss = RECIPES[case.model].loss(forward, slices[micro * case.world + rank])
                (loss / (case.accumulate if ddp else 1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    segments = len(wrapper.segments)
    wrapper.close()
    return segments


def _wrap(model: nn.Module, case: Case) -> tuple[Any, Any, Any]:
    """What is called, what steps, and which of the two is ours."""
    inner = OPTIMIZERS[case.optimizer](list(model.parameters()))
    strategy = strategy_of(case.split, sum(1 for _ in model.parameters()))
    if case.wrapper == "ddp":
        ddp = gw.DistributedDataParallel(model, strategy=strategy, overlap=case.overlap)
        return ddp, inner, ddp
    ours = gw.DistributedOptimizer(inner, model, strategy=strategy, overlap=case.overlap, accumulate=case.accumulate)
    return model, ours, ours


def _train_single(case: Case, recipe: Recipe) -> nn.Module:
    """The full batch in one process; models with statistics over ranks see one micro-batch of all ranks at a time."""
    model = fresh(case)
    optimizer = OPTIMIZERS[case.optimizer](list(model.parameters()))
    parts = case.accumulate if recipe.reference == "per_micro" else 1
    for slices in batches(case):
        size = len(slices) // parts
        for part in range(parts):
            joined = tuple(torch.cat(tensors) for tensors in zip(*slices[part * size : (part + 1) * size], strict=True))
            (recipe.loss(model, joined) / parts).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def _train_replicas(case: Case, recipe: Recipe) -> list[nn.Module]:
    """One replica per rank in one process, gradients averaged by the formula."""
    replicas = [copy.deepcopy(fresh(case)) for _ in range(case.world)]
    optimizers = [OPTIMIZERS[case.optimizer](list(replica.parameters())) for replica in replicas]
    ddp = case.wrapper == "ddp"
    for slices in batches(case):
        for nth, batch in enumerate(slices):
            loss = recipe.loss(replicas[nth % case.world], batch)
            (loss / (case.accumulate if ddp else 1)).backward()
        _average(replicas, case.world * (1 if ddp else case.accumulate))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return replicas


def _average(replicas: list[nn.Module], divisor: int) -> None:
    for params in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = _mean([param.grad for param in params if param.grad is not None], divisor)
        for param in params:
            param.grad = mean.clone()


def _mean(gradients: list[Tensor], divisor: int) -> Tensor:
    """Division before the sum, in float32 for bfloat16."""
    first = gradients[0]
    wire = torch.float32 if first.dtype is torch.bfloat16 else first.dtype
    total = torch.zeros(first.shape, dtype=wire)
    for gradient in gradients:
        total += gradient.to(wire).to_dense() / divisor
    mean = total.to(first.dtype)
    return mean.to_sparse(1) if first.is_sparse else mean


# -- comparing ---------------------------------------------------------------------------------------------------------------


def distance(ours: Any, theirs: Any) -> float:
    """Largest difference over pairs of tensors, each relative to the largest magnitude in the second."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        wide = torch.complex128 if b.is_complex() else torch.float64
        a, b = a.detach().to(wide), b.detach().to(wide)
        worst = max(worst, float((a - b).abs().max()) / max(float(b.abs().max()), 1e-2))
    return worst


def digest(model: nn.Module) -> str:
    """A hash of the bits of all parameters."""
    sha = hashlib.sha256()
    for param in model.parameters():
        sha.update(param.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()[:16]
