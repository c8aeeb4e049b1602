"""SplitStrategy as a value: its form is checked when it is made, and it survives every way of passing it on."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import SplitError
from gradweave.split import SplitStrategy
from tests.split import malformed

CASES = [
    *[("by_idx", value, words) for value, words in malformed.INDICES],
    *[("by_size", value, words) for value, words in malformed.PERCENTAGES],
    *[("by_bytes", value, words) for value, words in malformed.CAPS],
    *[("caps_mib", value, words) for value, words in malformed.CAPS_MIB],
    *[("by_names", value, words) for value, words in malformed.NAMES],
]

EVERY_KIND = [
    SplitStrategy.by_idx([20, 100, 159]),
    SplitStrategy.by_size([60, 20, 20]),
    SplitStrategy.by_bytes([1, 2]),
    SplitStrategy.caps_mib(0.5),
    SplitStrategy.by_names([["c"], ["b", "a"]]),
    SplitStrategy.default(),
    SplitStrategy.hccl_default(),
    SplitStrategy.single(),
    SplitStrategy.per_gradient(),
]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)


@pytest.mark.parametrize(("constructor", "value", "words"), CASES)
def test_malformed_values_are_refused_with_value_rule_and_fix(constructor: str, value: Any, words: str) -> None:
    with pytest.raises(SplitError) as caught:
        getattr(SplitStrategy, constructor)(value)
    message = str(caught.value)
    assert words in message and "Rule:" in message and "Fix:" in message


@given(constructor=st.sampled_from(["by_idx", "by_size", "by_bytes", "caps_mib", "by_names"]), value=anything)
def test_any_value_gives_a_strategy_or_a_split_error(constructor: str, value: Any) -> None:
    try:
        strategy = getattr(SplitStrategy, constructor)(value)
    except SplitError as error:
        assert "Rule:" in str(error) and "Fix:" in str(error)
    else:
        assert strategy.values


@pytest.mark.parametrize("strategy", EVERY_KIND)
def test_equal_strategies_survive_json_pickle_and_copies(strategy: SplitStrategy) -> None:
    again = SplitStrategy.from_dict(json.loads(json.dumps(strategy.to_dict())))
    for other in (again, pickle.loads(pickle.dumps(strategy)), copy.deepcopy(strategy)):
        assert other == strategy and hash(other) == hash(strategy) and other.digest == strategy.digest


def test_different_strategies_differ_in_value_and_digest() -> None:
    assert len(set(EVERY_KIND)) == len({strategy.digest for strategy in EVERY_KIND}) == len(EVERY_KIND)


@pytest.mark.parametrize("strategy", EVERY_KIND)
def test_descriptions_are_one_line(strategy: SplitStrategy) -> None:
    assert strategy.describe() and "\n" not in strategy.describe()


def test_long_descriptions_are_shortened() -> None:
    text = SplitStrategy.by_idx(range(10_000)).describe()
    assert len(text) < 100 and "9999" in text


def test_strategies_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SplitStrategy.single().kind = "default"  # type: ignore[misc]


@pytest.mark.parametrize("entries", [(1, 3), range(1, 4, 2), np.array([1, 3]), [np.int64(1), np.uint8(3)]])
def test_tuples_ranges_and_numpy_integers_count_as_lists_of_indices(entries: Any) -> None:
    strategy = SplitStrategy.by_idx(entries)
    assert strategy == SplitStrategy.by_idx([1, 3])
    assert all(type(index) is int for index in strategy.values)


def test_numpy_numbers_count_as_percentages_and_caps() -> None:
    assert SplitStrategy.by_size(np.array([60.0, 40.0])) == SplitStrategy.by_size([60, 40])
    assert SplitStrategy.by_bytes(np.int32(8)) == SplitStrategy.by_bytes(8)


@pytest.mark.parametrize("shares", [[33.3333] * 3, [33.33337, 33.33333, 33.3334], [100], [0.1] * 1000])
def test_percentages_within_a_ten_thousandth_of_100_are_allowed(shares: list[float]) -> None:
    assert len(SplitStrategy.by_size(shares).values) == len(shares)


def test_the_fix_for_a_wrong_sum_is_itself_accepted() -> None:
    with pytest.raises(SplitError) as caught:
        SplitStrategy.by_size([60, 20, 10])
    assert caught.value.fix == "write [66.6667, 22.2222, 11.1111]"
    assert SplitStrategy.by_size([66.6667, 22.2222, 11.1111])


@pytest.mark.parametrize(
    "data",
    [None, [], {}, {"kind": "by_idx"}, {"kind": "x", "values": []}, {"kind": [], "values": []},
     {"kind": "single", "values": [1]}, {"kind": "by_idx", "values": []}, {"kind": "single", "values": [], "more": 1}],
)  # fmt: skip
def test_malformed_dictionaries_are_refused(data: Any) -> None:
    with pytest.raises(SplitError, match="Rule:.*Fix:"):
        SplitStrategy.from_dict(data)


def test_the_number_of_segments_asked_for_is_known_where_it_is_fixed() -> None:
    assert [strategy.asked_segments for strategy in EVERY_KIND] == [3, 3, None, None, 2, None, 2, 1, None]


def test_only_a_split_by_names_implies_an_order() -> None:
    assert SplitStrategy.by_names([["c"], ["b", "a"]]).order == ("c", "b", "a")
    assert SplitStrategy.single().order is None
