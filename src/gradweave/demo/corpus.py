"""Real text that every machine has: the sources of Python's standard library.

Every twentieth file is held out for validation, so that the validation loss is of files never seen. Bytes are the vocabulary:
there is nothing to download and no tokenizer to train.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradweave.errors import StateError

HELD_OUT_EVERY = 20
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}


@dataclass(frozen=True)
class Corpus:
    """Training and validation text as byte values (uint8, one dimension)."""

    train: Tensor
    validation: Tensor


def load_corpus(limit_bytes: int = 8_000_000) -> Corpus:
    """Read the standard library's sources, in the order of their paths.

    Args:
        limit_bytes: stop after this many bytes of training text.

    Raises:
        StateError: this Python has no readable standard library sources.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    train, validation = bytearray(), bytearray()
    for number, path in enumerate(sorted(p for p in root.rglob("*.py") if not _SKIPPED & set(p.relative_to(root).parts))):
        try:
            text = path.read_bytes()
        except OSError:
            continue
        if number % HELD_OUT_EVERY == HELD_OUT_EVERY // 2:
            validation += text
        else:
            train += text
        if len(train) >= limit_bytes:
            break
    if len(train) < 100_000 or len(validation) < 10_000:
        raise StateError(
            f"{root} holds {len(train)} bytes of sources",
            rule="the demo trains on the standard library's .py files",
            fix="use a Python that ships them (Debian: apt-get install libpython3-stdlib)",
        )
    return Corpus(_as_tensor(train), _as_tensor(validation))


def _as_tensor(text: bytearray) -> Tensor:
    return torch.frombuffer(text, dtype=torch.uint8)


def draw(text: Tensor, batch: int, context: int, generator: torch.Generator) -> Tensor:
    """Cut `batch` random windows of `context + 1` bytes: (batch, context + 1), int64."""
    starts = torch.randint(len(text) - context, (batch,), generator=generator)
    return torch.stack([text[start : start + context + 1] for start in starts.tolist()]).long()
