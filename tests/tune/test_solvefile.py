"""The JSON instance and `gradweave solve`."""

from __future__ import annotations

import json

import pytest

from gradweave.errors import ConfigError
from gradweave.tune import parse_problem, solve_file
from tests.cli.command import gradweave, gradweave_without_torch

AFFINE = {"ready_s": [0, 2, 5], "bytes": [2, 1, 1], "alpha_s": 3, "beta_s_per_byte": 1}
TABLE = {"ready_s": [0, 2, 5], "bytes": [2, 1, 1], "table": [[0, 3], [4, 7]]}


@pytest.fixture
def instance(tmp_path):
    path = tmp_path / "instance.json"
    path.write_text(json.dumps(AFFINE))
    return path


def test_the_output_has_the_plan_the_certificate_and_the_baselines(instance):
    data = solve_file(instance)
    assert (data["plan"], data["end_s"], data["exposed_s"], data["bound_s"]) == ([0, 2], 10, 5, 9)
    assert data["baselines"] == {"single": 12, "hccl_default": 12, "per_gradient": 13, "cap_25MiB": 12, "mgwfbp": 12}


def test_a_table_that_is_a_line_gives_the_same_plan_and_its_optimum_is_the_bound(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(TABLE))
    data = solve_file(path)
    assert (data["plan"], data["end_s"], data["bound_s"]) == ([0, 2], 10, 10)


def test_max_segments_is_kept(instance):
    instance.write_text(json.dumps({**AFFINE, "max_segments": 1}))
    assert solve_file(instance)["plan"] == [2]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ready_s": None}, "ready_s"),
        ({"ready_s": "0 1 2"}, "ready_s"),
        ({"ready_s": [0, "x", 5]}, "ready_s[1] is 'x'"),
        ({"bytes": [2, 1]}, "bytes has 2"),
        ({"bytes": [2, 1, -1]}, "bytes[2] is -1"),
        ({"alpha_s": None}, "alpha_s is None"),
        ({"alpha_s": -1}, "alpha_s is -1"),
        ({"beta_s_per_byte": "1"}, "beta_s_per_byte is '1'"),
        ({"table": [[0, 1]]}, "both 'table' and 'alpha_s'"),
        ({"max_segments": 1.5}, "max_segments=1.5"),
        ({"max_bytes": 0}, "max_bytes=0"),
        ({"forced": 1}, "forced is 1"),
        ({"forced": [7]}, "forced[0] is 7"),
        ({"beta": 1}, "'beta' is unknown"),
    ],
)
def test_a_bad_field_is_named(change, words):
    with pytest.raises(ConfigError) as error:
        parse_problem({**AFFINE, **change})
    assert words in str(error.value) and "Fix:" in str(error.value)


@pytest.mark.parametrize("name", ["ready_s", "bytes", "alpha_s", "beta_s_per_byte"])
def test_a_missing_field_is_named(name):
    with pytest.raises(ConfigError, match=f"'{name}' is missing"):
        parse_problem({key: value for key, value in AFFINE.items() if key != name})


@pytest.mark.parametrize("table", [[], [[0]], [[0, 1], [0, 2]], [[0, 2], [1, 1]], [[0, -1]], "x", [[0, None]], [[0, 1e999]]])
def test_a_bad_table_is_named(table):
    with pytest.raises(ConfigError, match="table|alpha_s"):
        parse_problem({**TABLE, "table": table})


@pytest.mark.parametrize("data", [[], 3, None, "x"])
def test_an_instance_is_an_object(data):
    with pytest.raises(ConfigError, match="the instance is a"):
        parse_problem(data)


def test_the_command_prints_json_and_nothing_else_without_torch(instance):
    result = gradweave_without_torch("solve", str(instance), "--json")
    assert json.loads(result.stdout)["plan"] == [0, 2], result.stderr


def test_the_command_prints_a_table_for_people(instance):
    result = gradweave("solve", str(instance))
    assert "[0, 2]" in result.stdout and "mgwfbp" in result.stdout and "bound for any split" in result.stdout


def test_the_command_names_the_wrong_field_and_fails(instance):
    instance.write_text(json.dumps({**AFFINE, "alpha_s": "slow"}))
    result = gradweave("solve", str(instance))
    assert result.returncode == 1 and "alpha_s is 'slow'" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("text", ["", "{", "[1, 2"])
def test_a_file_that_is_not_json(instance, text):
    instance.write_text(text)
    result = gradweave("solve", str(instance))
    assert result.returncode == 1 and "is not JSON" in result.stderr


def test_a_file_that_is_not_there(tmp_path):
    result = gradweave("solve", str(tmp_path / "none.json"))
    assert result.returncode == 1 and "none.json" in result.stderr and "Traceback" not in result.stderr
