"""The demo's text: the same on every machine of one Python, validation apart from training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradweave.demo import corpus
from gradweave.demo.corpus import HELD_OUT_EVERY, draw, load_corpus
from gradweave.errors import StateError

FILE_BYTES = 12_000


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A standard library of twenty files; file k consists of bytes k."""
    for number in range(HELD_OUT_EVERY):
        (tmp_path / f"m{number:02}.py").write_bytes(bytes([number]) * FILE_BYTES)
    monkeypatch.setattr(corpus.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    return tmp_path


@pytest.mark.usefixtures("library")
def test_every_twentieth_file_is_held_out_and_seen_in_validation_only() -> None:
    text = load_corpus()
    assert text.validation.unique().tolist() == [HELD_OUT_EVERY // 2]
    assert text.train.unique().tolist() == [n for n in range(HELD_OUT_EVERY) if n != HELD_OUT_EVERY // 2]
    assert (text.train.dtype, text.train.dim()) == (torch.uint8, 1)


def test_tests_and_installed_packages_are_no_training_text(library: Path) -> None:
    for folder in ("test", "site-packages", "json/tests"):
        (library / folder).mkdir(parents=True)
        (library / folder / "a.py").write_bytes(b"\xff" * FILE_BYTES)
    text = load_corpus()
    assert 255 not in text.train and 255 not in text.validation


@pytest.mark.usefixtures("library")
def test_reading_stops_at_the_limit() -> None:
    assert len(load_corpus(limit_bytes=150_000).train) == 13 * FILE_BYTES


@pytest.mark.usefixtures("library")
def test_a_python_without_sources_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for path in tmp_path.glob("*.py"):
        path.unlink()
    with pytest.raises(StateError, match="Fix: ") as caught:
        load_corpus()
    assert str(tmp_path) in caught.value.what


def test_this_python_has_sources() -> None:
    one, other = load_corpus(1_000_000), load_corpus(1_000_000)
    assert torch.equal(one.train, other.train) and torch.equal(one.validation, other.validation)
    assert len(one.train) >= 1_000_000 and b"import" in bytes(one.train[:100_000].tolist())


def test_windows_are_runs_of_the_text_with_one_byte_more_than_the_context() -> None:
    tokens = draw(torch.arange(200, dtype=torch.uint8), 5, 8, torch.Generator().manual_seed(0))
    assert tokens.shape == (5, 9) and tokens.dtype == torch.int64
    assert torch.equal(tokens - tokens[:, :1], torch.arange(9).expand(5, 9))
    assert tokens[:, 0].unique().numel() > 1


def test_a_text_of_one_window_gives_that_window() -> None:
    text = torch.arange(9, dtype=torch.uint8)
    assert draw(text, 2, 8, torch.Generator().manual_seed(0)).tolist() == [list(range(9))] * 2


def test_equal_generators_draw_equal_windows() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    one, other = (draw(text, 5, 8, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(one, other)
