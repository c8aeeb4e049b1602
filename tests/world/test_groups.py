"""Groups by name, process group, mesh; private communicators."""

from __future__ import annotations

from typing import Any

import pytest

from gradweave.errors import ConfigError, GroupError, MismatchError
from tests.support import needs_free_order, pool


def _sum(pg, value: float) -> float:
    import torch
    import torch.distributed as dist

    x = torch.tensor(value)
    dist.all_reduce(x, group=pg)
    return float(x)


def every_form(rank: int, world_size: int) -> list:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from gradweave.world import as_group, new_group

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    made = new_group("outer", [3, 0])
    plain = dist.new_group([0, 1, 2])
    forms = [None, "world", "hccl_world_group", dist.group.WORLD, as_group(), mesh["tp"], mesh["dp"].get_group()]
    if rank in (0, 3):
        forms += [made, "outer", made.pg]
    if rank < 3:
        forms.append(plain)
    groups = [as_group(form) for form in forms]
    assert all(g.ranks[g.rank] == rank and g.size == len(g.ranks) and g.backend == "gloo" for g in groups)
    assert all(_sum(g.pg, 1.0) == g.size for g in groups[:6])
    return [(g.name, g.ranks) for g in groups if g.name in ("world", "outer")], [g.ranks for g in groups[5:7]]


def overlapping_private(rank: int, world_size: int) -> list[float]:
    """Members hold different numbers of groups when the last one is made: torch's local names would differ."""
    from gradweave.world import as_group, new_group, private_group, reset_registries

    totals = []
    for _ in range(2):
        new_group("left", [0, 1])
        new_group("right", [1, 2])
        for name in ("left", "right", "world"):
            if name == "world" or rank in {"left": (0, 1), "right": (1, 2)}[name]:
                totals.append(_sum(private_group(as_group(name), "engine"), 1.0))
        reset_registries()
    return totals


def private_is_apart(rank: int, world_size: int) -> bool:
    """Two groups at once, started in opposite order on the two ranks."""
    import torch
    import torch.distributed as dist

    from gradweave.world import as_group, control_group, private_group

    world = as_group()
    own = private_group(world, "engine", timeout=5)
    assert control_group(world) is world.pg
    values = {world.pg: torch.tensor([1.0]), own: torch.tensor([10.0])}
    order = list(values) if rank == 0 else list(values)[::-1]
    works = [dist.all_reduce(values[pg], group=pg, async_op=True) for pg in order]
    for work in works:
        work.wait()
    return [float(v) for v in values.values()] == [2.0, 20.0]


def refused(rank: int, world_size: int, name, ranks, limit=None) -> None:
    from gradweave.world import new_group

    new_group("taken", [0])
    new_group(name, ranks, timeout=limit)


def different(rank: int, world_size: int) -> None:
    from gradweave.world import new_group

    new_group("pair", [0, 1] if rank == 0 else [0])


def bad_on_one(rank: int, world_size: int) -> None:
    from gradweave.world import new_group

    new_group("pair", [0, 1] if rank == 0 else [0, 7])


def outsider(rank: int, world_size: int, by: str) -> None:
    import torch.distributed as dist

    from gradweave.world import as_group, new_group

    if by == "name":
        new_group("zero", [0])
        as_group("zero" if rank else None)
    else:
        pg = dist.new_group([0])
        as_group(pg if rank else None)


def stale(rank: int, world_size: int, by: str) -> None:
    import torch.distributed as dist

    from gradweave.world import as_group, new_group

    group = new_group("both", [0, 1])
    dist.destroy_process_group(group.pg)
    as_group({"group": group, "pg": group.pg}[by])


def wrong_kind(rank: int, world_size: int, what: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    from gradweave.world import as_group

    as_group(7 if what == "int" else init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b")))


def alone(rank: int, world_size: int) -> list:
    from gradweave.world import as_group, control_group, private_group
    from gradweave.world.agree import agree, exchange

    group = as_group("world")
    agree([1], "nothing", group)
    return [group.size, _sum(private_group(group, "x"), 3.0), _sum(control_group(group), 4.0), exchange("a", group)]


def test_a_group_is_accepted_in_every_form() -> None:
    named, meshes = pool.run(4, every_form)[3]
    assert named == [("world", (0, 1, 2, 3))] * 5 + [("outer", (0, 3))] * 3
    assert meshes == [(2, 3), (1, 3)]


def test_private_groups_of_overlapping_groups_do_not_wait_for_each_other() -> None:
    assert pool.run(3, overlapping_private) == [[2.0, 3.0] * 2, [2.0, 2.0, 3.0] * 2, [2.0, 3.0] * 2]


@needs_free_order
def test_private_collectives_do_not_interleave_with_the_users() -> None:
    assert pool.run(2, private_is_apart) == [True, True]


@pytest.mark.parametrize(
    ("name", "ranks", "kind", "text"),
    [
        ("taken", [0], GroupError, "'taken' is taken"),
        ("world", [0], GroupError, "'world' is taken"),
        ("", [0], ConfigError, "the group name ''"),
        (7, [0], ConfigError, "the group name 7"),
        ("new", [], ConfigError, r"ranks=\[\]"),
        ("new", 1, ConfigError, "ranks=1"),
        ("new", [0, True], ConfigError, r"ranks\[1\] is True"),
        ("new", [0, 1.0], ConfigError, r"ranks\[1\] is 1\.0"),
        ("new", [0, 2], ConfigError, r"ranks\[1\] is 2 in a world of 2"),
        ("new", [-1], ConfigError, r"ranks\[0\] is -1"),
        ("new", [1, 1], ConfigError, "rank 1 is given twice"),
    ],
)
def test_bad_arguments_of_new_group_are_refused(name, ranks, kind, text) -> None:
    with pytest.raises(kind, match=text):
        pool.run(2, refused, name, ranks)


def test_a_bad_timeout_of_new_group_is_refused() -> None:
    with pytest.raises(ConfigError, match="timeout=-1"):
        pool.run(2, refused, "new", [0, 1], limit=-1)


@pytest.mark.parametrize("fn", [different, bad_on_one])
def test_ranks_that_name_different_groups_are_told_so(fn) -> None:
    with pytest.raises(MismatchError, match=r'differ at \["ranks"\].*: rank 0 has .*, rank 1 has ') as caught:
        pool.run(2, fn)
    assert "rank 1" in str(caught.value.__cause__)


@pytest.mark.parametrize("by", ["name", "pg"])
def test_a_rank_outside_the_group_is_refused(by: str) -> None:
    with pytest.raises(GroupError, match="rank 1 is not in the"):
        pool.run(2, outsider, by)


@pytest.mark.parametrize("by", ["group", "pg"])
def test_a_destroyed_group_is_refused(by: str) -> None:
    with pytest.raises((GroupError, ValueError), match="destroyed"):
        pool.run(2, stale, by)


@pytest.mark.parametrize(("what", "text"), [("int", "7 is not a group"), ("mesh", r"2 axes \('a', 'b'\)")])
def test_what_is_not_a_group_is_refused(what: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        pool.run(2, wrong_kind, what)


def test_everything_works_in_a_world_of_one_without_init() -> None:
    env = {"RANK": None, "WORLD_SIZE": None}
    (outcome,) = pool.fresh(1, alone, joins_group=False, env=env)
    assert outcome.value == [1, 3.0, 4.0, ["a"]], outcome


def odd_group(rank: int, world_size: int, kind: str) -> str:
    from gradweave import world
    from gradweave.errors import ConfigError

    given: Any = {"a generator": ("ours", (r for r in [0, 1])), "a long name": ("n" * 100_000, [0, 1])}[kind]
    try:
        world.new_group(*given)
    except ConfigError as error:
        return str(error)
    return "nothing"


@pytest.mark.parametrize(("kind", "words"), [("a generator", "ranks=<generator"), ("a long name", "of 100000 characters")])
def test_what_is_no_list_or_no_name_is_refused_on_every_rank(kind: str, words: str) -> None:
    for text in pool.run(2, odd_group, kind):
        assert words in text and "Rule:" in text
