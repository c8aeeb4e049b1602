"""Where a plan comes from, how a change is offered and taken up, and who is named when ranks disagree."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pytest

from gradweave.errors import MismatchError, SplitError
from gradweave.model import segments_from_boundaries
from gradweave.split import SplitStrategy, registry
from gradweave.sync.plan import PlanSource
from tests.sync.builders import infos

SINGLE, EACH = SplitStrategy.single(), SplitStrategy.per_gradient()
RANKS = (4, 5, 6)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    registry.reset_all()
    yield
    registry.reset_all()


def source(explicit: SplitStrategy | None = None, count: int = 4, group: str = "world", label: str = "optimizer") -> PlanSource:
    return PlanSource(group, label, explicit, SplitStrategy.default(), infos(*[8] * count))


class TestPrecedence:
    """Explicit strategy, then the registry's, then the default."""

    def test_the_default_holds_where_nobody_names_one(self) -> None:
        assert source().strategy == SplitStrategy.default()

    def test_the_registry_wins_over_the_default(self) -> None:
        registry.set_("world", SINGLE)
        assert source().strategy == SINGLE

    def test_an_explicit_strategy_wins_over_the_registry(self) -> None:
        registry.set_("world", SINGLE)
        assert source(EACH).strategy == EACH

    def test_another_groups_strategy_does_not_count(self) -> None:
        registry.set_("left", SINGLE)
        assert source(group="right").strategy == SplitStrategy.default()


class TestPending:
    """A call that the engine has not taken up yet."""

    def test_nothing_is_pending_at_first_not_even_after_an_earlier_call(self) -> None:
        registry.set_("world", SINGLE)
        assert not source().pending

    def test_a_call_is_pending_until_all_ranks_offer_it(self) -> None:
        plan = source()
        registry.set_("world", SINGLE)
        assert plan.pending and plan.strategy == SplitStrategy.default()
        plan.accept([plan.offer()] * 3, RANKS, step=7)
        assert not plan.pending and plan.strategy == SINGLE

    def test_a_call_with_the_same_value_is_pending_too(self) -> None:
        registry.set_("world", SINGLE)
        plan = source()
        registry.set_("world", SINGLE)
        assert plan.pending

    def test_a_reset_brings_the_default_back(self) -> None:
        registry.set_("world", SINGLE)
        plan = source()
        registry.reset("world")
        assert plan.pending
        plan.accept([plan.offer()] * 3, RANKS, step=7)
        assert plan.strategy == SplitStrategy.default()

    def test_an_explicit_strategy_is_left_alone_by_calls(self) -> None:
        plan = source(EACH)
        with pytest.warns(UserWarning, match="strategy= of their own, which wins"):
            registry.set_("world", SINGLE)
        assert not plan.pending and plan.offer()["strategy"] == EACH.to_dict()


class TestMismatch:
    """Ranks that were told different things."""

    def offers(self, *strategies: SplitStrategy | None) -> list[dict[str, object]]:
        """What ranks offer: a new strategy, or (None) their old one."""
        default = SplitStrategy.default()
        return [{"version": 1, "strategy": (s or default).to_dict(), "pending": s is not None} for s in strategies]

    def test_ranks_that_made_no_call_are_named(self) -> None:
        with pytest.raises(MismatchError, match=r"ranks \[5, 6\] made no call") as caught:
            source().accept(self.offers(SINGLE, None, None), RANKS, step=7)
        assert (caught.value.group, caught.value.step) == ("world", 7)
        assert "optimizer" in caught.value.what and caught.value.rule and caught.value.fix

    def test_a_first_rank_that_made_no_call_is_named_itself(self) -> None:
        with pytest.raises(MismatchError, match=r"ranks \[4\] made no call"):
            source().accept(self.offers(None, SINGLE, SINGLE), RANKS, step=7)

    def test_ranks_with_another_value_are_named(self) -> None:
        with pytest.raises(MismatchError, match=r"ranks \[6\] gave another value than rank 4"):
            source().accept(self.offers(SINGLE, SINGLE, EACH), RANKS, step=7)

    def test_nothing_changes_where_ranks_disagree(self) -> None:
        plan = source()
        registry.set_("world", SINGLE)
        with pytest.raises(MismatchError):
            plan.accept(self.offers(SINGLE, None, None), RANKS, step=7)
        assert plan.strategy == SplitStrategy.default() and plan.pending


class TestCheck:
    """A strategy that does not fit is refused at the call, by whom it does not fit."""

    MISFIT = SplitStrategy.by_idx([1, 9])

    def test_the_wrapper_is_not_built(self) -> None:
        with pytest.raises(SplitError) as caught:
            source(self.MISFIT)
        assert caught.value.group == "world"

    def test_the_call_is_refused(self) -> None:
        plan = source()
        with pytest.raises(SplitError):
            registry.set_("world", self.MISFIT)
        assert not plan.pending

    def test_an_explicit_strategys_wrapper_is_not_asked(self) -> None:
        plan = source(EACH)
        with pytest.warns(UserWarning, match="strategy= of their own, which wins"):
            registry.set_("world", self.MISFIT)
        assert plan.strategy == EACH

    def test_a_closed_wrapper_is_not_asked(self) -> None:
        plan = source()
        plan.close()
        registry.set_("world", self.MISFIT)
        assert registry.get("world") == self.MISFIT and plan.gradient_count == 4

    def test_closing_twice_does_nothing(self) -> None:
        plan, other = source(), source(label="other")
        plan.close()
        plan.close()
        with pytest.raises(SplitError):
            registry.set_("world", self.MISFIT)
        assert other.gradient_count == 4

    def test_a_dropped_wrapper_is_not_asked(self) -> None:
        plan = source()
        del plan
        gc.collect()
        registry.set_("world", self.MISFIT)
        assert registry.get("world") == self.MISFIT

    def test_a_wrapper_that_was_not_built_is_not_asked(self) -> None:
        registry.set_("world", self.MISFIT)
        with pytest.raises(SplitError) as caught:
            source()
        registry.reset("world")
        registry.set_("world", SplitStrategy.by_idx([11]))
        assert caught.value.group == "world"


class TestBoundaries:
    """Last indices for gradients in the order in which they are generated."""

    def test_sizes_decide_in_the_order_given(self) -> None:
        by_size = SplitStrategy.by_size([50, 50])
        assert source().boundaries(by_size, infos(4, 4, 4, 12)) == (2, 3)
        assert source().boundaries(by_size, infos(12, 4, 4, 4)) == (0, 3)

    def test_names_imply_an_order_of_their_own(self) -> None:
        by_names = SplitStrategy.by_names([["p3", "p0"], ["p2", "p1"]])
        plan = source(by_names)
        given = infos(8, 8, 8, 8)
        assert plan.boundaries(by_names, [given[3], given[0], given[2], given[1]]) == (1, 3)

    def test_names_of_another_model_are_refused(self) -> None:
        with pytest.raises(SplitError):
            source(SplitStrategy.by_names([["p0", "p1"], ["p2", "q"]]))


def test_the_segment_result_is_registered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    plan, segments = source(EACH), segments_from_boundaries([0, 1], [8, 8])
    with caplog.at_level(logging.INFO, logger="gradweave.split"):
        plan.announce(segments)
    assert registry.result("world").by_wrapper["optimizer"] == registry.result("world").segments == segments
    assert registry.result("world").strategy == EACH
    assert "world" in caplog.text
