"""The matrix of parity cases, and a sample of it in which every pair of values occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import gradweave as gw
from tests.parity.models import RECIPES

WORLDS = (2, 3, 4)
# Which models are trained in which dtypes: every model in float32, and each dtype in models that exercise it.
KINDS = [
    ("mlp", "float32"), ("mlp", "float64"), ("mlp", "bfloat16"), ("complex", "complex64"),
    ("batchnorm", "float32"), ("batchnorm", "bfloat16"), ("syncbn", "float32"), ("gpt", "float32"), ("gpt", "float64"),
    ("gpt", "bfloat16"), ("lstm", "float32"), ("lstm", "bfloat16"), ("sparse", "float32"), ("sparse", "bfloat16"),
]  # fmt: skip


def strategy_of(split: str, count: int) -> Any:
    """The `strategy=` argument of a split, for a model of `count` gradients."""
    return {
        "default": None,
        "single": "single",
        "per_gradient": "per_gradient",
        "by_idx": sorted({0, count // 2, count - 1}),
        "by_size": gw.SplitStrategy.by_size([60, 20, 20]),
        "hccl_default": "hccl_default",
        "by_bytes": gw.SplitStrategy.by_bytes(200),
    }[split]


# "single" is left out of the matrix: it is what "default" gives for models this small. The bits test has it.
SPLITS = ("default", "per_gradient", "by_idx", "by_size", "hccl_default", "by_bytes")


def segments_of(split: str, count: int) -> int | None:
    """How many segments a split has for a model of `count` gradients; None where it depends on their bytes."""
    return {"default": 1, "single": 1, "per_gradient": count, "by_idx": 3, "by_size": 3}.get(split)


@dataclass(frozen=True)
class Case:
    """A point of the matrix; `split` is one of `SPLITS`, `wrapper` is "optimizer" or "ddp"."""

    world: int
    model: str
    dtype: str
    split: str
    overlap: bool
    accumulate: int
    wrapper: str
    optimizer: str

    def __str__(self) -> str:
        overlap = "overlap" if self.overlap else "serial"
        return "-".join(str(v) if v is not self.overlap else overlap for v in astuple(self))


def full_matrix() -> list[Case]:
    """Every legal case."""
    return [
        Case(world, model, dtype, split, overlap, accumulate, wrapper, optimizer)
        for world, (model, dtype), split, overlap, accumulate, wrapper in itertools.product(
            WORLDS, KINDS, SPLITS, (True, False), (1, 3), ("optimizer", "ddp")
        )
        for optimizer in RECIPES[model].optimizers
    ]


def pairs(case: Case) -> set[tuple[Any, ...]]:
    """All pairs of values of a case; model and dtype count as one value."""
    values = (case.world, (case.model, case.dtype), case.split, case.overlap, case.accumulate, case.wrapper, case.optimizer)
    return set(itertools.combinations(enumerate(values), 2))


def pairwise_sample(cases: Sequence[Case]) -> list[Case]:
    """A small subset in which every pair of values that occurs in `cases` occurs; the same at every call."""
    order = list(cases)
    random.Random(5).shuffle(order)
    chosen: list[Case] = []
    covered: set[tuple[Any, ...]] = set()
    for wanted in (18, 12, 8, 5, 3, 2, 1):
        for case in order:
            new = pairs(case) - covered
            if len(new) >= wanted:
                chosen.append(case)
                covered |= new
    return sorted(chosen, key=str)
