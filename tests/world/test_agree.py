"""Agreement checks across ranks, and what a lost peer's error says."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradweave.errors import CollectiveError, MismatchError
from gradweave.world.agree import canonical, first_difference
from tests.support import pool

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def check(rank: int, world_size: int, values: list) -> str:
    from gradweave.world import as_group
    from gradweave.world.agree import agree

    try:
        agree(values[rank], "the plans", as_group())
    except MismatchError as error:
        return str(error)
    return "equal"


def gather(rank: int, world_size: int) -> list:
    from gradweave.world import as_group
    from gradweave.world.agree import exchange

    return exchange({"rank": rank}, as_group())


def lose_peer(rank: int, world_size: int, dead: int) -> None:
    from gradweave.world import as_group
    from gradweave.world.agree import agree

    agree(0, "the plans", as_group())
    if rank == dead:
        os._exit(3)
    agree(1, "the plans", as_group())


def test_equal_values_pass_whatever_the_order_of_keys() -> None:
    assert pool.run(2, check, [{"a": (1, 2), "b": None}, {"b": None, "a": [1, 2]}]) == ["equal", "equal"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[1, 2], [1, 2], [1, 3]], "the plans differ at [1]: rank 0 has 2, rank 2 has 3"),
        ([[1], [1, 5], [1]], "the plans differ at [1]: rank 0 has nothing, rank 1 has 5"),
        ([{"a": 1}, {"a": 1}, {"b": 1}], 'the plans differ at ["a"]: rank 0 has 1, rank 2 has nothing'),
        ([{"a": [{"k": "x"}]}, {"a": [{"k": "y"}]}, 0], 'the plans differ at ["a"][0]["k"]: rank 0 has "x", rank 1 has "y"'),
        (["x", 1.5, 1.5], 'the plans differ: rank 0 has "x", rank 1 has 1.5'),
    ],
)
def test_the_first_difference_and_both_ranks_are_named_on_every_rank(values: list, text: str) -> None:
    messages = pool.run(3, check, values)
    assert all(text in message for message in messages), messages


def test_objects_are_exchanged_in_peer_order() -> None:
    assert pool.run(3, gather) == [[{"rank": 0}, {"rank": 1}, {"rank": 2}]] * 3


def test_a_dead_peer_is_named() -> None:
    outcomes = pool.fresh(2, lose_peer, dead=1, group_timeout_s=5)
    assert isinstance(outcomes[0].error, CollectiveError)
    assert "[rank 0, group world] the check of the plans did not finish: not heard from: rank 1" in str(outcomes[0].error)


def test_the_death_of_the_store_is_said() -> None:
    outcomes = pool.fresh(2, lose_peer, dead=0, group_timeout_s=5)
    assert isinstance(outcomes[1].error, CollectiveError)
    assert "the store is gone too" in str(outcomes[1].error)


@given(JSON, JSON)
def test_a_difference_is_found_exactly_when_values_differ(left, right) -> None:
    _, a, b = first_difference(left, right)
    assert (canonical(a) != canonical(b)) == (canonical(left) != canonical(right)) or left == right
