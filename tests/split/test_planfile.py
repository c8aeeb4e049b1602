"""Plan files: written whole, read back equal, and refused with the first thing that is wrong."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import GradweaveError, PlanFileError, SplitError
from gradweave.model import GradientInfo, segments_from_boundaries
from gradweave.split import load_plan, model_signature, save_plan
from gradweave.split.planfile import make_plan, write_plan
from gradweave.split.planschema import check_fields

INFOS = [GradientInfo(name, (4, 2), "float32", 32) for name in ("head", "body", "stem")]


def saved(path: Path, **changes: Any) -> Path:
    """A good plan file with some fields changed; `...` removes one."""
    data = {**make_plan(INFOS, [0, 2], group_size=2, backend="gloo").to_dict(), **changes}
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))
    return path


@given(
    infos=st.lists(
        st.builds(
            GradientInfo,
            st.text(min_size=1),
            st.lists(st.integers(0, 9), max_size=4).map(tuple),
            st.sampled_from(["float32", "bfloat16"]),
            st.integers(0, 1 << 40),
        ),
        min_size=1,
        max_size=20,
        unique_by=lambda info: info.name,
    ),
    data=st.data(),
)
def test_a_plan_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, infos: list[GradientInfo], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    lasts = sorted({*data.draw(st.sets(st.integers(0, len(infos) - 1))), len(infos) - 1})
    written = save_plan(path, infos, lasts, group_size=3, backend="gloo", topology="2 hosts", note="a note")
    read = load_plan(path)
    assert read == replace(written, source=str(path))
    assert read.order == tuple(info.name for info in infos)
    assert read.strategy().boundaries([info.size_bytes for info in infos], read.order) == tuple(lasts)
    read.check(data.draw(st.permutations(infos)), group_size=3, backend="gloo")


def test_segments_and_last_indices_give_the_same_plan() -> None:
    segments = segments_from_boundaries([0, 2], [info.size_bytes for info in INFOS])
    by_segments = make_plan(INFOS, segments, group_size=2, backend="gloo")
    assert (
        by_segments.segments == make_plan(INFOS, [0, 2], group_size=2, backend="gloo").segments == (("head",), ("body", "stem"))
    )


def test_segments_that_do_not_cover_the_gradients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SplitError, match="too small"):
        save_plan(tmp_path / "plan.json", INFOS, [0, 1], group_size=2, backend="gloo")
    assert not list(tmp_path.iterdir())


def test_gradients_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="'head' appears twice.*Rule:.*Fix:"):
        save_plan(tmp_path / "plan.json", [INFOS[0], INFOS[0]], [0, 1], group_size=2, backend="gloo")


def test_the_signature_depends_on_names_shapes_and_dtypes_but_not_on_order() -> None:
    signature = model_signature(INFOS)
    assert model_signature(INFOS[::-1]) == signature
    for change in ({"name": "x"}, {"shape": (2, 4)}, {"dtype": "bfloat16"}):
        assert model_signature([replace(INFOS[0], **change), *INFOS[1:]]) != signature


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        (INFOS[:2], "'stem' is missing from the model"),
        ([*INFOS, replace(INFOS[0], name="extra")], "'extra' is not in the plan"),
        ([replace(INFOS[0], shape=(4, 3)), *INFOS[1:]], r"'head' is float32 \[4, 2\] in the plan and float32 \[4, 3\]"),
        ([replace(INFOS[0], dtype="bfloat16"), *INFOS[1:]], r"'head' is float32 \[4, 2\] in the plan and bfloat16"),
    ],
)
def test_a_plan_for_another_model_names_the_first_difference(tmp_path: Path, infos: list[GradientInfo], words: str) -> None:
    plan = load_plan(saved(tmp_path / "plan.json"))
    with pytest.raises(PlanFileError, match=f"plan.json: .*{words}.*Rule:.*Fix:"):
        plan.check(infos)


def test_a_plan_without_shapes_still_notices_another_shape(tmp_path: Path) -> None:
    plan = load_plan(saved(tmp_path / "plan.json", parameters=...))
    plan.check(INFOS)
    with pytest.raises(PlanFileError, match="a shape or a dtype differs"):
        plan.check([replace(INFOS[0], shape=(4, 3)), *INFOS[1:]])


def test_a_plan_for_another_group_is_refused() -> None:
    plan = make_plan(INFOS, [0, 2], group_size=2, backend="gloo")
    plan.check(INFOS, group_size=2, backend="gloo")
    with pytest.raises(PlanFileError, match="made for 2 ranks, and the group has 4"):
        plan.check(INFOS, group_size=4)
    with pytest.raises(PlanFileError, match="backend 'gloo', and the group has 'nccl'"):
        plan.check(INFOS, backend="nccl")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[("schema", bad) for bad in (..., "gradweave.trace", 1, None)],
        *[("schema_version", bad) for bad in (..., 0, 2, 1.0, True, "1", None)],
        *[("segments", bad) for bad in (..., [], [[]], [["head"], []], ["head"], [[3]], [["head", "head"]], {}, None, "x")],
        *[("segments", [["head"], ["body", "stem", "head"]])],
        *[("model_signature", bad) for bad in (..., "", "sha256:", "md5:" + "0" * 64, "sha256:" + "g" * 64, 3, None)],
        *[("group_size", bad) for bad in (..., 0, -1, 2.0, True, "2", None)],
        *[("backend", bad) for bad in (..., "", 3, None)],
        *[("topology", bad) for bad in (3, [], {})],
        *[("created", bad) for bad in ("yesterday", 3, None)],
        *[("note", bad) for bad in (3, None, [])],
        *[("parameters", bad) for bad in (None, [], {"head": 3}, {"head": ["float32"]}, {"head": ["float32", [True]]})],
        ("parameters", {"head": ["float32", [4, 2]]}),
        ("colour", "red"),
    ],
)
def test_malformed_fields_are_named_with_file_rule_and_fix(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(PlanFileError, match=rf"plan\.json: .*{field}.*Rule: .*Fix: "):
        load_plan(saved(tmp_path / "plan.json", **{field: value}))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'"gradweave.plan"', b"NaN"]
)
def test_files_that_are_no_plan_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(PlanFileError, match=r"(?s)plan\.json: .*Rule: .*Fix: "):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("name", ["missing.json", "", "missing/plan.json"])
def test_paths_that_cannot_be_read_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PlanFileError, match="cannot be read.*Rule: .*Fix: "):
        load_plan(tmp_path / name)


def test_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="schema_version is 2.*pip install --upgrade gradweave"):
        load_plan(saved(tmp_path / "plan.json", schema_version=2, segments="something new"))


def test_optional_fields_may_be_left_out(tmp_path: Path) -> None:
    plan = load_plan(saved(tmp_path / "plan.json", topology=..., created=..., note=..., parameters=...))
    assert (plan.topology, plan.created, plan.note, dict(plan.parameters)) == (None, "", "", {})


def test_dates_in_utc_may_end_with_z(tmp_path: Path) -> None:
    assert load_plan(saved(tmp_path / "plan.json", created="2025-01-31T12:00:00Z")).created.endswith("Z")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["schema", "schema_version", "segments", "parameters", "x"]), x)))  # fmt: skip
def test_no_json_value_escapes_the_check(value: Any) -> None:
    with pytest.raises(PlanFileError, match="(?s)Rule: .*Fix: "):
        check_fields(value, "plan.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "plan.json")
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(PlanFileError, match="cannot be written: No space left.*Rule: .*Fix: "):
        write_plan(path, make_plan(INFOS, [2], group_size=2, backend="gloo"))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(GradweaveError, match="no_such/plan.json: cannot be written"):
        save_plan(tmp_path / "no_such" / "plan.json", INFOS, [2], group_size=2, backend="gloo")


def test_plan_files_are_readable_by_others_as_the_umask_allows(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write_plan(tmp_path / "plan.json", make_plan(INFOS, [2], group_size=2, backend="gloo"))
    assert (tmp_path / "plan.json").stat().st_mode == plain.stat().st_mode
