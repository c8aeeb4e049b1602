"""The live recorder keeps what happened, from any thread, at a cost far below the step's."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from gradweave.errors import ConfigError
from gradweave.model.segment import GradientInfo, Segment
from gradweave.trace import live
from gradweave.trace.files import load_dir
from gradweave.trace.recorder import Recorder


@pytest.fixture(autouse=True)
def _fresh_registry():
    live.reset()
    yield
    live.reset()


def make(count: int = 4, **changes: object) -> Recorder:
    recorder = Recorder(**{"rank": 0, "world_size": 1, "group": "world", "backend": "gloo", "label": "model", **changes})
    recorder.set_gradients([GradientInfo(f"p{i}", (2,), "float32", 8) for i in range(count)])
    return recorder


def iterate(recorder: Recorder, step: int, count: int = 4) -> None:
    recorder.begin(step)
    recorder.fp_start()
    recorder.fp_end()
    for index in range(count):
        recorder.ready[index] = time.perf_counter()
    token = recorder.launched(Segment(0, 0, count - 1, 8 * count), 8 * count, "float32")
    recorder.bp_end()
    recorder.finished(token)
    recorder.iteration_end((count - 1,), overlap=True)


def test_marks_of_an_iteration_come_in_order() -> None:
    recorder = make()
    iterate(recorder, 0)
    iterate(recorder, 1)
    first, second = recorder.iterations
    event = second.collectives[0]
    marks = [
        second.previous_end_s,
        second.fp_start_s,
        second.fp_end_s,
        *second.ready_s,
        event.start_s,
        second.bp_end_s,
        event.end_s,
    ]
    assert marks == sorted(marks) and second.iteration_end_s >= event.end_s
    assert first.previous_end_s is None and second.previous_end_s == first.iteration_end_s
    assert event.ready_s == second.ready_s[-1]
    assert (second.step, second.plan, second.overlap) == (1, (3,), True)


def test_first_fp_start_and_last_bp_end_count() -> None:
    recorder = make()
    recorder.begin(0)
    recorder.fp_start()
    recorder.bp_end()
    between = time.perf_counter()
    recorder.fp_start()
    recorder.bp_end()
    recorder.iteration_end((3,), overlap=False)
    assert recorder.iterations[0].fp_start_s <= between <= recorder.iterations[0].bp_end_s


def test_without_a_model_forward_starts_at_the_previous_end() -> None:
    recorder = make()
    for step in range(2):
        recorder.begin(step)
        recorder.iteration_end((3,), overlap=True)
    first, second = recorder.iterations
    assert second.fp_start_s == first.iteration_end_s == second.previous_end_s
    assert first.fp_start_s <= first.iteration_end_s and first.fp_end_s is None


def test_a_collective_that_never_finishes_ends_with_the_iteration() -> None:
    recorder = make()
    recorder.begin(0)
    token = recorder.launched(Segment(0, 0, 3, 32), 32, "float32")
    recorder.iteration_end((3,), overlap=True)
    end = recorder.iterations[0].iteration_end_s
    recorder.finished(token)
    assert recorder.iterations[0].collectives[0].end_s == end


def test_the_first_finish_counts_and_device_times_replace_it() -> None:
    recorder = make()
    recorder.begin(0)
    token = recorder.launched(Segment(0, 0, 3, 32), 32, "float32")
    recorder.finished(token)
    before = time.perf_counter()
    recorder.finished(token)
    recorder.iteration_end((3,), overlap=True)
    assert recorder.iterations[0].collectives[0].end_s <= before
    recorder.set_times(token, 1.0, 2.0)
    assert (recorder.iterations[0].collectives[0].start_s, recorder.iterations[0].collectives[0].end_s) == (1.0, 2.0)


def test_ready_times_start_afresh_in_the_same_list() -> None:
    recorder = make()
    ready = recorder.ready
    iterate(recorder, 0)
    assert recorder.ready is ready and ready == [None] * 4
    recorder.begin(1)
    recorder.iteration_end((3,), overlap=True)
    assert recorder.iterations[1].ready_s == (None,) * 4


def test_the_ring_keeps_the_last_iterations() -> None:
    recorder = make(capacity=3)
    for step in range(5):
        iterate(recorder, step)
    assert [iteration.step for iteration in recorder.iterations] == [2, 3, 4]
    recorder.clear()
    assert recorder.iterations == () and not recorder.has_iterations


def test_a_disabled_recorder_records_nothing_and_leaves_no_gap() -> None:
    recorder = make()
    iterate(recorder, 0)
    recorder.enabled = False
    iterate(recorder, 1)
    assert recorder.launched(Segment(0, 0, 3, 32), 32, "float32") is None
    recorder.enabled = True
    iterate(recorder, 2)
    assert [iteration.step for iteration in recorder.iterations] == [0, 2]
    assert recorder.iterations[1].previous_end_s is None, "data wait must not span the iteration that was not recorded"


def test_an_iteration_that_was_not_begun_is_not_recorded() -> None:
    recorder = make()
    recorder.iteration_end((3,), overlap=True)
    assert recorder.iterations == ()


def test_ready_times_follow_the_names_when_the_order_changes() -> None:
    recorder = make(3)
    recorder.begin(0)
    recorder.ready[:] = [1.0, 2.0, 3.0]
    recorder.iteration_end((2,), overlap=True)
    recorder.set_gradients([GradientInfo(name, (2,), "float32", 8) for name in ("p2", "p0", "p1")])
    assert recorder.iterations[0].ready_s == (3.0, 1.0, 2.0)


def test_any_thread_may_launch_and_finish() -> None:
    recorder = make()
    recorder.begin(0)

    def work(index: int) -> None:
        recorder.finished(recorder.launched(Segment(index, 0, 3, 32), 32, "float32"))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.iteration_end((3,), overlap=True)
    events = recorder.iterations[0].collectives
    assert sorted(event.segment for event in events) == list(range(16))
    assert [event.start_s for event in events] == sorted(event.start_s for event in events)


def test_capacity_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity is 0"):
        make(capacity=0)


def test_cost_is_under_one_percent_of_a_50_ms_step() -> None:
    recorder, gradients = make(160), 160
    segments = [Segment(index, index * 16, index * 16 + 15, 128) for index in range(10)]

    def step(number: int) -> float:
        start = time.perf_counter()
        recorder.begin(number)
        recorder.fp_start()
        for index in range(gradients):
            recorder.ready[index] = time.perf_counter()
        for segment in segments:
            recorder.finished(recorder.launched(segment, 128, "float32"))
        recorder.bp_end()
        recorder.iteration_end((159,), overlap=True)
        return time.perf_counter() - start

    costs = sorted(step(number) for number in range(200))
    assert costs[len(costs) // 2] < 0.01 * 0.050


def test_save_and_save_all_write_one_file_a_recorder(tmp_path) -> None:
    first, second, empty = make(), make(), make(label="empty")
    iterate(first, 0)
    iterate(second, 0)
    assert first.save(tmp_path / "one").name == "gradweave-rank00000-model.json"
    paths = live.save_all(tmp_path / "all")
    assert [path.name for path in paths] == ["gradweave-rank00000-model.json", "gradweave-rank00000-model-2.json"]
    assert [trace.label for trace in load_dir(tmp_path / "all")] == ["model", "model-2"]
    assert not empty.has_iterations
    assert load_dir(tmp_path / "one")[0].iterations[0].plan == (3,)


def test_a_collected_recorder_leaves_the_registry_unless_kept_for_exit(tmp_path) -> None:
    recorder = make()
    del recorder
    gc.collect()
    assert live.live_recorders() == []
    live.save_on_exit(tmp_path)
    recorder = make()
    del recorder
    gc.collect()
    assert len(live.live_recorders()) == 1


SCRIPT = """
import sys
from gradweave.model.segment import GradientInfo
from gradweave.trace import Recorder, save_on_exit
def main():
    save_on_exit(sys.argv[1]); save_on_exit(sys.argv[1])
    r = Recorder(rank=1, world_size=2, group="world", backend="gloo", label="inside")
    r.set_gradients([GradientInfo("p", (1,), "float32", 4)])
    r.begin(0); r.iteration_end((0,), overlap=True)
main()
assert "torch" not in sys.modules
"""


def test_save_on_exit_saves_what_a_function_dropped(tmp_path) -> None:
    subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert [(trace.rank, trace.label) for trace in load_dir(tmp_path)] == [(1, "inside")]
