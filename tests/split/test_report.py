"""The segment result in HCCL's words."""

from __future__ import annotations

import logging

import pytest

from gradweave.model import Segment, segments_from_boundaries
from gradweave.split import SplitStrategy
from gradweave.split.report import index_list, log_result, result_line
from gradweave.world import names

TWO = (Segment(0, 0, 107, 9654), Segment(1, 108, 159, 346))


def test_segments_are_written_as_hccl_writes_them() -> None:
    assert index_list(TWO) == "segment index list: [0, 107] [108, 159]"


def test_the_log_line_is_found_by_hccls_keyword(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gradweave.split"):
        log_result("world", TWO, SplitStrategy.hccl_default())
    assert caplog.messages == [
        "segment result: group world: segment index list: [0, 107] [108, 159] (2 segments, 96.54 % 3.46 % of 10000 bytes)"
    ]


@pytest.mark.parametrize(("rank", "lines"), [(0, 1), (1, 0)])
def test_one_rank_of_the_group_logs(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, rank: int, lines: int
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "4")
    with caplog.at_level(logging.INFO, logger="gradweave.split"):
        log_result("world", TWO)
    assert len(caplog.messages) == lines


def test_a_group_of_other_ranks_logs_on_its_own_first(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    names.add("pair", (2, 3))
    with caplog.at_level(logging.INFO, logger="gradweave.split"):
        for rank in range(4):
            monkeypatch.setenv("RANK", str(rank))
            log_result("pair", TWO)
    names.reset_registries()
    assert len(caplog.messages) == 1


def test_fewer_segments_than_asked_for_are_stated() -> None:
    strategy = SplitStrategy.by_size([50, 25, 25])
    segments = segments_from_boundaries(strategy.boundaries([8, 8]), [8, 8])
    assert result_line("world", segments, strategy).endswith("; 2 of 3 segments asked for, because there are 2 gradients")
    assert "asked for" not in result_line("world", segments, SplitStrategy.per_gradient())


def test_a_model_without_bytes_is_reported() -> None:
    assert "(1 segment, 0.00 % of 0 bytes)" in result_line("world", [Segment(0, 0, 1, 0)])
