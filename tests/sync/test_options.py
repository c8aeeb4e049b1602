"""Options of an engine: every bad value is refused with the rule and the way out; what ranks share is told."""

from __future__ import annotations

import dataclasses
import math
from datetime import timedelta
from typing import Any

import pytest
import torch

import gradweave
from gradweave.errors import ConfigError
from gradweave.sync import EngineOptions
from gradweave.sync.options import check_timeout

BAD = [
    {"op": "mean"},
    {"op": None},
    {"op": ["average"]},
    {"accumulate": 0},
    {"accumulate": -1},
    {"accumulate": 2.0},
    {"accumulate": True},
    {"accumulate": "2"},
    {"accumulate": None},
    {"reduce_dtype": torch.int32},
    {"reduce_dtype": torch.complex64},
    pytest.param({"reduce_dtype": torch.float8_e4m3fn}),
    {"reduce_dtype": "float32"},
    {"reduce_dtype": 32},
    {"weight": 3.0},
    {"weight": lambda: 1.0, "op": "sum"},
    {"timeout_s": 0},
    {"timeout_s": -1.0},
    {"timeout_s": math.nan},
    {"timeout_s": math.inf},
    {"timeout_s": True},
    {"timeout_s": "30"},
]


@pytest.mark.parametrize(
    "values", BAD, ids=lambda values: " ".join(f"{k}={v!r}" for k, v in values.items()).partition(" at ")[0]
)
def test_a_bad_value_is_refused_with_value_rule_and_fix(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"=.*\. Rule: .+\. Fix: .+\.") as caught:
        EngineOptions(**values)
    name, value = next(iter(values.items()))
    assert repr(value) in str(caught.value) and name.removesuffix("_s") in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"op": "sum"},
        {"accumulate": 4},
        {"reduce_dtype": torch.bfloat16},
        {"reduce_dtype": torch.float64},
        {"weight": lambda: 1.0},
        {"timeout_s": 0.5},
        {"timeout_s": 30},
    ],
)
def test_a_good_value_is_kept(values: dict[str, Any]) -> None:
    options = EngineOptions(**values)
    assert {name: getattr(options, name) for name in values} == values


def test_options_do_not_change_after_the_check() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineOptions().accumulate = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    "different",
    [{"op": "sum"}, {"overlap": False}, {"accumulate": 2}, {"reduce_dtype": torch.float64}, {"weight": lambda: 1.0}],
)
def test_terms_differ_where_ranks_would_not_fit_together(different: dict[str, Any]) -> None:
    assert EngineOptions(**different).terms() != EngineOptions().terms()


def test_terms_are_equal_where_only_names_and_functions_differ() -> None:
    one, other = EngineOptions(weight=lambda: 1.0, label="a", record=False), EngineOptions(weight=lambda: 2.0, label="b")
    assert one.terms() == other.terms()


def test_a_report_has_the_versions_and_the_model_if_it_is_known() -> None:
    versions = {"gradweave": gradweave.__version__, "torch": torch.__version__}
    assert EngineOptions().meta() == versions
    assert EngineOptions(model_name="GPT").meta() == {"model": "GPT", **versions}


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(None, None), (3, 3.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (timedelta(milliseconds=5), 0.005)],
)
def test_a_timeout_is_seconds_whatever_it_was_given_as(given: Any, seconds: float | None) -> None:
    assert check_timeout(given) == seconds
    assert seconds is None or isinstance(check_timeout(given), float)


@pytest.mark.parametrize("given", [0, -2, math.nan, math.inf, True, "9", [1], timedelta(0), timedelta(seconds=-1)], ids=repr)
def test_a_bad_timeout_is_refused_as_it_was_given(given: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        check_timeout(given)
    assert repr(given) in caught.value.what and caught.value.rule and caught.value.fix
