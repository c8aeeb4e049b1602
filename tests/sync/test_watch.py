"""Waiting with a name: what failed, where, in which step, who did not come, and why torch says so."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from gradweave.errors import CollectiveError, MismatchError
from gradweave.sync import watch as watch_module
from gradweave.sync.watch import Watch
from gradweave.world.groups import Group

TORCH = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4242. "
    "This is typically caused by a dead process.\nException raised from wait"
)


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """Give the process its SIGTERM handler back."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def watch(alone: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Watch:
    """One that watches ranks 0, 1 and 2, seen from rank 0 in step 5; it has no patience."""
    monkeypatch.setattr(watch_module, "_MARK_AFTER_S", 0.001)
    group = Group("trio", (0, 1, 2), 0, dist.group.WORLD)
    made = Watch(group, "optimizer", request.node.name, timeout_s=0.001)
    made.step = 5
    made.at("segment 1")
    return made


def mark(watch: Watch, rank: int, text: str) -> None:
    watch_module._store().set(watch._key(rank), text)


def raising(error: Exception) -> Callable[[], None]:
    def finish() -> None:
        raise error

    return finish


class TestFailure:
    """The error of a collective that failed."""

    def test_names_collective_engine_group_rank_and_step(self, watch: Watch) -> None:
        error = watch.failure("all_reduce of segment 1", "no answer")
        assert error.what.startswith("all_reduce of segment 1 failed in optimizer: ")
        assert (error.rank, error.group, error.step) == (0, "trio", 5)
        assert "[rank 0, group trio, step 5]" in str(error)

    def test_says_the_rule_and_the_way_out(self, watch: Watch) -> None:
        error = watch.failure("all_reduce", "no answer")
        assert "all 3 ranks" in str(error.rule) and "timeout=" in str(error.fix)

    def test_names_ranks_without_a_mark(self, watch: Watch) -> None:
        assert "ranks that did not arrive: 1, 2 (torch says" in watch.failure("all_reduce", "no answer").what

    def test_names_ranks_whose_mark_is_of_an_earlier_step(self, watch: Watch) -> None:
        mark(watch, 1, "5 segment 1")
        mark(watch, 2, "4 exchange of the gradient order")
        what = watch.failure("all_reduce", "no answer").what
        assert "ranks that did not arrive: 2 (last waited in step 4 exchange of the gradient order)" in what

    def test_blames_the_connection_where_everybody_came(self, watch: Watch) -> None:
        mark(watch, 1, "5 segment 1")
        mark(watch, 2, "6 segment 0")
        assert "every rank arrived, but the connection between them broke" in watch.failure("all_reduce", "no answer").what

    def test_leaves_a_mark_for_the_others(self, watch: Watch) -> None:
        watch.failure("all_reduce", "no answer")
        assert watch_module._store().get(watch._key(0)) == b"5 segment 1"

    def test_of_another_wrapper_leaves_other_marks(self, watch: Watch) -> None:
        other = Watch(watch.group, watch.label, "another communicator", 0.001)
        assert other._key(0) != watch._key(0) != watch._key(1)

    def test_says_that_the_store_is_gone_where_it_raises(self, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
        def gone() -> Any:
            raise ConnectionError("broken pipe")

        monkeypatch.setattr(watch_module, "_store", gone)
        error = watch.failure("all_reduce", "no answer")
        assert "the rendezvous store does not answer" in error.what and "ranks that did not arrive" not in error.what

    def test_does_not_wait_for_a_store_that_blocks(self, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
        released = threading.Event()
        monkeypatch.setattr(watch_module, "_store", lambda: released.wait(30))
        monkeypatch.setattr(watch_module, "_STORE_S", 0.01)
        assert "the rendezvous store does not answer" in watch.failure("all_reduce", "no answer").what
        released.set()


class TestTorchsWords:
    """What torch says, as far as it helps."""

    def test_come_without_source_path_advice_and_further_lines(self, watch: Watch) -> None:
        what = watch.failure("all_reduce", TORCH).what
        assert what.endswith("(torch says: Connection closed by peer [127.0.0.1]:4242)")

    @pytest.mark.parametrize(
        ("cause", "plain"),
        [
            ("no answer within 3 s", "no answer within 3 s"),
            ("Timed out. ", "Timed out"),
            ("", "nothing"),
            ("[../gloo/pair.cc:1] a\nb", "a"),
            ("peer [1]:2 is gone", "peer [1]:2 is gone"),
        ],
    )
    def test_are_kept_where_there_is_nothing_to_strip(self, cause: str, plain: str) -> None:
        assert watch_module._plain(cause) == plain


class TestWait:
    """A wait that ends, fails, or takes too long."""

    def test_that_ends_finishes_and_leaves_no_mark(self, watch: Watch) -> None:
        done: list[str] = []
        watch.wait(lambda limit_s: True, lambda: done.append(str(watch.pending)), "all_reduce")
        assert done == ["all_reduce"] and watch.pending is None
        assert not watch_module._store().check([watch._key(0)])

    def test_that_takes_long_leaves_a_mark(self, watch: Watch) -> None:
        answers = iter([False, False, False, True])
        watch.wait(lambda limit_s: next(answers), lambda: None, "all_reduce")
        assert watch_module._store().get(watch._key(0)) == b"5 segment 1"

    def test_that_fails_is_a_collective_error_with_torchs_as_its_cause(self, watch: Watch) -> None:
        torchs = RuntimeError(TORCH)
        with pytest.raises(CollectiveError, match="all_reduce failed") as caught:
            watch.wait(lambda limit_s: True, raising(torchs), "all_reduce")
        assert caught.value.__cause__ is torchs and watch.pending is None

    def test_that_never_ends_is_given_up(self, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
        times = iter([0.0, 5.0, 5.01])
        monkeypatch.setattr(watch_module.time, "monotonic", lambda: next(times, 9.0))
        done: list[int] = []
        with pytest.raises(CollectiveError, match=r"no answer within 0\.001 s"):
            watch.wait(lambda limit_s: False, lambda: done.append(1), "all_reduce")
        assert done == []

    def test_leaves_an_error_that_is_named_already_as_it_is(self, watch: Watch) -> None:
        named = CollectiveError("all_gather failed", step=2)
        with pytest.raises(CollectiveError) as caught:
            watch.wait(lambda limit_s: True, raising(named), "all_reduce")
        assert caught.value is named

    def test_completes_an_error_of_ours_that_names_no_step_with_torchs_words(self, watch: Watch) -> None:
        ours = CollectiveError("an exchange failed")
        ours.__cause__ = RuntimeError(TORCH)
        with pytest.raises(CollectiveError, match="torch says: Connection closed by peer") as caught:
            watch.wait(lambda limit_s: True, raising(ours), "all_reduce")
        assert caught.value.step == 5 and caught.value.__cause__ is ours

    def test_leaves_our_other_errors_as_they_are(self, watch: Watch) -> None:
        with pytest.raises(MismatchError, match="ranks are in different calls"):
            watch.wait(lambda limit_s: True, raising(MismatchError("ranks are in different calls")), "all_reduce")

    def test_leaves_errors_that_are_not_torchs_as_they_are(self, watch: Watch) -> None:
        with pytest.raises(KeyError):
            watch.wait(lambda limit_s: True, raising(KeyError("mine")), "all_reduce")
        assert watch.pending is None


class TestSigterm:
    """The word that is said when the launcher ends a survivor."""

    @pytest.fixture
    def default(self) -> Iterator[None]:
        """The signal as Python leaves it."""
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
        yield
        signal.signal(signal.SIGTERM, before)

    def test_names_what_is_waited_for_and_dies_as_the_signal_asks(
        self, watch: Watch, default: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        raised: list[int] = []
        monkeypatch.setattr(watch_module.signal, "raise_signal", raised.append)
        answers = iter([False, True])

        def ended(limit_s: float) -> bool:
            if limit_s:
                signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # type: ignore[operator,misc]
            return next(answers)

        watch.wait(ended, lambda: None, "all_reduce of segment 1")
        said = capsys.readouterr().err
        assert said == "gradweave: terminated while rank 0 waited for all_reduce of segment 1 (group trio, optimizer, step 5)\n"
        assert raised == [signal.SIGTERM]

    def test_is_left_alone_where_nobody_waits(self, watch: Watch, default: None) -> None:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        answers = iter([False, True])
        watch.wait(lambda limit_s: next(answers), lambda: None, "all_reduce")
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def test_leaves_a_handler_of_the_program_alone(self, watch: Watch, default: None) -> None:
        def mine(number: int, frame: Any) -> None:
            """The program's own."""

        signal.signal(signal.SIGTERM, mine)
        seen: list[Any] = []
        answers = iter([False, True])

        def ended(limit_s: float) -> bool:
            seen.append(signal.getsignal(signal.SIGTERM))
            return next(answers)

        watch.wait(ended, lambda: None, "all_reduce")
        assert seen == [mine, mine]
