"""Trace files come back as they were; every damaged or incomplete input ends in a clear error or a stated partial result."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import TraceError
from gradweave.model.events import Trace
from gradweave.trace.codec import decode, encode
from gradweave.trace.files import file_name, load_dir, load_trace, notes, save_trace
from tests.trace import synthetic


def rounded(trace: Trace) -> Trace:
    return replace(
        trace,
        iterations=tuple(
            replace(i, ready_s=tuple(None if r is None else round(r, 7) for r in i.ready_s)) for i in trace.iterations
        ),
    )


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_a_trace_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    trace = synthetic.trace()
    path = save_trace(trace, tmp_path / "deep" / name)
    assert load_trace(path) == rounded(trace)
    assert [file.name for file in path.parent.iterdir()] == [name], "no half-written file stays behind"


def test_unknown_is_null(tmp_path: Path) -> None:
    trace = synthetic.trace(steps_each=1)
    iteration = replace(trace.iterations[0], fp_end_s=None, previous_end_s=None, ready_s=(None,) * 160)
    path = save_trace(replace(trace, iterations=(iteration,)), tmp_path / "a.json")
    raw = json.loads(path.read_text())["iterations"][0]
    assert raw["fp_end_s"] is None and raw["previous_end_s"] is None and raw["ready_s"][0] is None
    assert load_trace(path).iterations == (iteration,)


def test_a_folder_is_read_in_order_of_rank_and_label(tmp_path: Path) -> None:
    for rank, label in ((1, "a"), (0, "b"), (0, "a")):
        trace = synthetic.trace(rank=rank, label=label, steps_each=1)
        save_trace(trace, tmp_path / (file_name(rank, label) + (".gz" if rank else "")))
    (tmp_path / "report.html").write_text("not a trace")
    traces = load_dir(tmp_path)
    assert [(trace.rank, trace.label) for trace in traces] == [(0, "a"), (0, "b"), (1, "a")]
    assert load_dir(tmp_path / file_name(0, "a")) == traces[:1]


def test_labels_cannot_leave_the_folder() -> None:
    assert "/" not in file_name(0, "../../etc/x") and file_name(0, "") == "gradweave-rank00000-trace.json"


VALID = encode(synthetic.trace(steps_each=1))
DAMAGED = {
    "no JSON": (b"hello", "no JSON"),
    "empty": (b"", "no JSON"),
    "cut short": (json.dumps(VALID).encode()[:-40], "cut short"),
    "cut gzip": (gzip.compress(json.dumps(VALID).encode())[:-40], "truncated"),
    "damaged gzip": (gzip.compress(json.dumps(VALID).encode())[:20] + b"\x00" * 40, "damaged|truncated"),
    "binary": (bytes(range(128, 256)), "no JSON"),
    "a list": (b"[1, 2]", "holds a list"),
    "another kind": (b'{"traceEvents": []}', "not a Gradweave trace"),
    "newer": (json.dumps(VALID | {"schema_version": 2}).encode(), "schema_version 2"),
    "missing field": (json.dumps({k: v for k, v in VALID.items() if k != "rank"}).encode(), "'rank' is missing"),
    "wrong kind": (json.dumps(VALID | {"rank": "zero"}).encode(), "'rank' is 'zero'"),
    "bool for a number": (json.dumps(VALID | {"rank": True}).encode(), "'rank' is True"),
    "NaN": (json.dumps(VALID | {"epoch_offset_s": float("nan")}).encode(), "'epoch_offset_s' is nan"),
    "iterations of text": (json.dumps(VALID | {"iterations": ["x"]}).encode(), r"iterations\[0\] holds a str"),
    "deep nesting": (b"[" * 100_000, "no JSON"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    content, message = DAMAGED[case]
    path = tmp_path / file_name(0, "x")
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        load_dir(tmp_path)
    assert str(path) in str(caught.value) and "Fix:" in str(caught.value)


@given(st.sampled_from(sorted(VALID["iterations"][0])), st.sampled_from([None, "x", [], {}, True, [None], [{"a": 1}], 1e400]))
def test_a_field_of_the_wrong_kind_never_ends_in_another_exception(name: str, value: object) -> None:
    data = VALID | {"iterations": [VALID["iterations"][0] | {name: value}]}
    try:
        decode(data, "here")
    except TraceError as error:
        assert "here: iterations[0]" in str(error)


def test_missing_folder_empty_folder_and_doubles_are_errors(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no folder"):
        load_dir(tmp_path / "absent")
    with pytest.raises(TraceError, match="there is no file"):
        load_trace(tmp_path / "absent.json")
    with pytest.raises(TraceError, match="holds no trace"):
        load_dir(tmp_path)
    for name in ("gradweave-rank00000-a.json", "gradweave-rank00000-b.json"):
        save_trace(synthetic.trace(label="same", steps_each=1), tmp_path / name)
    with pytest.raises(TraceError, match="both rank 0, label 'same'"):
        load_dir(tmp_path)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write"):
        save_trace(synthetic.trace(steps_each=1), tmp_path / "file" / "a.json")


def test_what_is_incomplete_is_said_in_notes() -> None:
    complete = synthetic.run(2, steps_each=2)
    assert notes(complete) == []
    assert "1 of 2 ranks are here; missing: 1" in notes(complete[:1])[0]
    backwards = replace(complete[0].iterations[1], bp_end_s=complete[0].iterations[1].fp_start_s - 1)
    damaged = replace(complete[0], iterations=(complete[0].iterations[0], backwards))
    assert any("rank 0 has negative durations in step 1" in note for note in notes([damaged, complete[1]]))
    assert any("rank 1 holds no iteration" in note for note in notes([complete[0], replace(complete[1], iterations=())]))
    assert any("different world sizes" in note for note in notes([complete[0], replace(complete[1], world_size=3)]))
