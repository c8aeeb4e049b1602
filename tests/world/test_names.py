"""The table of named groups, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradweave.errors import GroupError
from gradweave.world import names


@pytest.fixture(autouse=True)
def empty_table():
    names.reset_registries()
    yield
    names.reset_registries()


def test_the_world_answers_to_both_names() -> None:
    assert names.lookup("world") == names.lookup("hccl_world_group")
    assert names.lookup("world").ranks == (0,)


def test_an_unknown_group_is_refused_with_the_known_ones() -> None:
    names.add("even", (0, 2))
    with pytest.raises(
        GroupError, match=r"group 'odd' is unknown\. Rule: the groups are world, even\. Fix: .*new_group\('odd'"
    ):
        names.lookup("odd")


def test_a_rank_outside_the_group_is_refused() -> None:
    names.add("others", (1, 2))
    with pytest.raises(GroupError, match=r"rank 0 is not in the group.*\[1, 2\]"):
        names.require_member("others")


@pytest.mark.parametrize("name", ["world", "hccl_world_group", "mine"])
def test_a_taken_name_is_refused(name: str) -> None:
    names.add("mine", (0,))
    with pytest.raises(GroupError, match="is taken"):
        names.add(name, (0,))


def test_reset_forgets_groups_and_calls_the_other_registries() -> None:
    called = []
    hook = names.on_reset(lambda: called.append(True))
    names.add("mine", (0,))
    names.reset_registries()
    names._reset_hooks.remove(hook)
    assert called == [True]
    assert names.known() == ["world"]


def test_the_package_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from gradweave.world import names\n"
        "assert names.my_rank() == 0 and names.world_size() == 1"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
