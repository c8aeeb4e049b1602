"""The registry: one strategy per group, refused whole or applied whole."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from gradweave.errors import SplitError
from gradweave.model import segments_from_boundaries
from gradweave.split import SplitStrategy, registry
from gradweave.world import names


class Wrapper:
    """What the registry knows of a wrapper."""

    def __init__(self, label: str, count: int) -> None:
        self.label, self.gradient_count = label, count

    def check_strategy(self, strategy: SplitStrategy) -> None:
        strategy.boundaries([4] * self.gradient_count, [str(index) for index in range(self.gradient_count)])


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    registry.reset_all()
    yield
    registry.reset_all()


def test_nothing_is_set_at_first() -> None:
    assert registry.get("world") is None
    assert registry.result("world").strategy == SplitStrategy.default() and not registry.result("world").is_set


def test_groups_are_separate_and_the_world_has_two_names() -> None:
    registry.set_("hccl_world_group", SplitStrategy.single())
    registry.set_("left", SplitStrategy.per_gradient())
    assert registry.get("world") == SplitStrategy.single()
    assert registry.get("left") == SplitStrategy.per_gradient()
    assert registry.get("right") is None


def test_every_set_and_reset_gives_a_new_version_also_with_the_same_value() -> None:
    versions = [registry.version("world")]
    versions.append(registry.set_("world", SplitStrategy.single()))
    versions.append(registry.set_("world", SplitStrategy.single()))
    versions.append(registry.reset("world"))
    registry.reset_all()
    versions.append(registry.version("world"))
    assert versions == sorted(set(versions))
    assert registry.snapshot("world") == (versions[-1], None)


def test_a_live_wrapper_refuses_at_the_call_and_nothing_changes() -> None:
    wrapper = Wrapper("first", 4)
    registry.subscribe("world", wrapper)
    registry.set_("world", SplitStrategy.by_idx([1, 3]))
    before = registry.snapshot("world")
    with pytest.raises(SplitError, match="too large"):
        registry.set_("world", SplitStrategy.by_idx([1, 4]))
    assert registry.snapshot("world") == before


def test_a_wrapper_that_is_gone_has_no_say() -> None:
    wrapper = Wrapper("first", 4)
    registry.subscribe("world", wrapper)
    del wrapper
    gc.collect()
    registry.set_("world", SplitStrategy.by_idx([1, 99]))


def test_an_unsubscribed_wrapper_has_no_say() -> None:
    wrapper = Wrapper("first", 4)
    registry.subscribe("world", wrapper)
    registry.unsubscribe("world", wrapper)
    registry.unsubscribe("other", wrapper)
    registry.set_("world", SplitStrategy.by_idx([1, 99]))


def test_a_wrapper_on_another_group_has_no_say() -> None:
    wrapper = Wrapper("first", 4)
    registry.subscribe("left", wrapper)
    registry.set_("world", SplitStrategy.by_idx([1, 99]))


def test_wrappers_with_different_counts_refuse_indices_by_both_names() -> None:
    wrappers = [Wrapper("generator", 4), Wrapper("critic", 6)]
    for wrapper in wrappers:
        registry.subscribe("world", wrapper)
    with pytest.raises(SplitError, match="'generator' .4 gradients. and 'critic' .6 gradients.*Rule:.*Fix:"):
        registry.set_("hccl_world_group", SplitStrategy.by_idx([1, 3]))
    assert registry.get("world") is None
    registry.set_("world", SplitStrategy.by_size([60, 40]))


def test_a_second_wrapper_with_another_count_is_refused_while_indices_are_set() -> None:
    wrappers = [Wrapper("generator", 4), Wrapper("critic", 6)]
    registry.subscribe("world", wrappers[0])
    registry.set_("world", SplitStrategy.by_idx([1, 3]))
    with pytest.raises(SplitError, match="'generator'.*'critic'"):
        registry.subscribe("world", wrappers[1])
    registry.set_("world", SplitStrategy.by_idx([0, 3]))  # the refused one is not asked


def test_subscribing_twice_asks_once() -> None:
    asked = []
    wrapper = Wrapper("first", 4)
    wrapper.check_strategy = asked.append  # type: ignore[method-assign]
    registry.subscribe("world", wrapper)
    registry.subscribe("world", wrapper)
    registry.set_("world", SplitStrategy.single())
    assert len(asked) == 1


def test_reports_are_read_back_latest_first_and_by_wrapper() -> None:
    two, one = segments_from_boundaries([0, 2], [4, 8, 8]), segments_from_boundaries([2], [4, 8, 8])
    registry.report("world", "a", two)
    registry.report("hccl_world_group", "b", one, strategy=SplitStrategy.single())
    result = registry.result("world")
    assert result.segments == one and result.last_indices == (2,) and result.strategy == SplitStrategy.single()
    assert dict(result.by_wrapper) == {"a": two, "b": one}
    registry.report("world", "a", two)
    assert registry.result("world").segments == two


def test_resetting_the_world_resets_the_registry() -> None:
    registry.set_("world", SplitStrategy.single())
    names.reset_registries()
    assert registry.get("world") is None


def test_no_version_is_lost_between_threads() -> None:
    before = registry.version("world")
    threads = [
        threading.Thread(target=lambda: [registry.set_("world", SplitStrategy.single()) for _ in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert registry.version("world") == before + 800
