"""The constructor of the DDP drop-in: every argument of torch's is honoured, or refused with a reason."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import gradweave as gw
from gradweave.errors import ConfigError, SplitError, StateError
from tests.support import pool


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def layers(count: int, width: int = 64) -> nn.Sequential:
    """`count` gradients of width^2 float32 each."""
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def test_the_arguments_are_torchs_in_order_with_the_same_defaults() -> None:
    ours = list(inspect.signature(gw.DistributedDataParallel.__init__).parameters.values())
    theirs = list(inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[len(theirs) :])


# -- refused -----------------------------------------------------------------------------------------------------------------


def construct(rank: int, world_size: int, kwargs: dict[str, Any], model: str = "small") -> str:
    """Wrap and return the error's text, or "accepted"; ranks stay usable."""
    made = {
        "small": small,
        "frozen": lambda: small().requires_grad_(False),
        "lazy": lambda: nn.LazyLinear(2),
        "empty": nn.Module,
    }
    try:
        gw.DistributedDataParallel(made[model](), **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.parametrize(
    ("kwargs", "kind", "says"),
    [
        ({"device_ids": [0]}, ConfigError, "device_ids and output_device are for modules on one accelerator"),
        ({"device_ids": [0, 1]}, ConfigError, "single element"),
        ({"output_device": 1}, ConfigError, "leave both out"),
        ({"delay_all_reduce_named_params": [("0.weight", None)]}, ConfigError, "delay_all_reduce_named_params"),
        ({"param_to_hook_all_reduce": 3}, ConfigError, "param_to_hook_all_reduce"),
        ({"skip_all_reduce_unused_params": True}, ConfigError, "skip_all_reduce_unused_params"),
        ({"mixed_precision": "fp16"}, ConfigError, "autocast"),
        ({"bucket_cap_mb": -1}, SplitError, "-1"),
        ({"bucket_cap_mb": float("nan")}, SplitError, "nan"),
        ({"bucket_cap_mb": "25"}, SplitError, "25"),
        ({"bucket_cap_mb_list": []}, SplitError, "empty"),
        ({"bucket_cap_mb_list": [1, -2]}, SplitError, "-2"),
        ({"bucket_cap_mb": 1, "bucket_cap_mb_list": [1]}, ConfigError, "given in one way"),
        ({"bucket_cap_mb": 1, "strategy": "single"}, ConfigError, "given in one way"),
        ({"strategy": [0, 1]}, SplitError, "3"),
        ({"strategy": "nonsense"}, ConfigError, "nonsense"),
        ({"reduce_dtype": torch.int32}, ConfigError, "int32"),
        ({"timeout": 0}, ConfigError, "0"),
        ({"timeout": float("inf")}, ConfigError, "inf"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_cannot_be_honoured_is_refused_on_every_rank(kwargs: dict[str, Any], kind: type[Exception], says: str) -> None:
    for text in pool.run(2, construct, kwargs):
        assert text.startswith(kind.__name__) and says in text, text
        assert "Rule: " in text and "Fix: " in text


@pytest.mark.parametrize(("model", "says"), [("frozen", "not needed"), ("empty", "not needed"), ("lazy", "uninitialized")])
def test_a_module_that_cannot_be_trained_is_refused_as_by_torch(model: str, says: str) -> None:
    assert issubclass(StateError, RuntimeError)
    for text in pool.run(2, construct, {}, model):
        assert text.startswith("StateError") and says in text, text


def unknown(rank: int, world_size: int) -> str:
    with pytest.raises(TypeError) as caught:
        gw.DistributedDataParallel(small(), find_unused_params=True)
    return str(caught.value)


def test_a_misspelt_argument_is_refused() -> None:
    assert "find_unused_params" in pool.run(2, unknown)[0]


# -- accepted ----------------------------------------------------------------------------------------------------------------


def trained(rank: int, world_size: int, kwargs: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Gradients of one step under ours and under torch's class with the same arguments."""
    flats = []
    for kind in (gw.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = kind(small(), **kwargs)
        torch.manual_seed(rank)
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
        flats.append(torch.cat([p.grad.flatten() for p in model.parameters()]).tolist())
    return flats[0], flats[1]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"device_ids": None, "output_device": None, "dim": 0},
        {"device_ids": []},
        {"broadcast_buffers": False},
        {"forward_sync_buffers": False},
        {"init_sync": False},
        {"bucket_cap_mb": 1},
        {"bucket_cap_mb": 0.0001},
        {"bucket_cap_mb_list": [1, 2]},
        {"find_unused_parameters": True},
        {"check_reduction": True},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"batched_grad_copy": True},
    ],
    ids=lambda kwargs: "-".join(f"{k}={v}" for k, v in kwargs.items()),
)
def test_an_accepted_argument_leaves_gradients_as_torchs_class_computes_them(kwargs: dict[str, Any]) -> None:
    for ours, theirs in pool.run(2, trained, kwargs):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)


def warned(rank: int, world_size: int, kwargs: dict[str, Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gw.DistributedDataParallel(small(), **kwargs)
    return [str(w.message) for w in seen if issubclass(w.category, FutureWarning)]


def test_arguments_without_effect_say_so() -> None:
    assert "check_reduction" in pool.run(2, warned, {"check_reduction": True})[0][0]
    both = {"broadcast_buffers": True, "forward_sync_buffers": False}
    assert "broadcast_buffers is ignored" in pool.run(2, warned, both)[0][0]
    assert pool.run(2, warned, {}) == [[], []]


def started_differently(rank: int, world_size: int, init_sync: bool) -> float:
    model = small()
    with torch.no_grad():
        model[0].weight.fill_(float(rank + 1))
    return float(gw.DistributedDataParallel(model, init_sync=init_sync).module[0].weight.mean())


def test_init_sync_copies_rank_0_and_false_leaves_parameters_alone() -> None:
    assert pool.run(2, started_differently, True) == [1.0, 1.0]
    assert pool.run(2, started_differently, False) == [1.0, 2.0]


# -- segments ----------------------------------------------------------------------------------------------------------------


def segments_of(rank: int, world_size: int, count: int, kwargs: dict[str, Any]) -> list[list[tuple[int, int]]]:
    """The segments at construction, after the first and after the third step."""
    model = gw.DistributedDataParallel(layers(count), **kwargs)
    seen = [[(s.first, s.last) for s in model.segments]]
    for step in range(3):
        model(torch.ones(2, 64)).sum().backward()
        if step in (0, 2):
            seen.append([(s.first, s.last) for s in model.segments])
    return seen


KIB = 1 / 1024


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"bucket_cap_mb": 0}, [(i, i) for i in range(6)]),
        ({"bucket_cap_mb": 32 * KIB}, [(0, 1), (2, 3), (4, 5)]),
        ({"bucket_cap_mb": 25}, [(0, 5)]),
        ({"bucket_cap_mb_list": [16 * KIB, 48 * KIB, 32 * KIB]}, [(0, 0), (1, 3), (4, 5)]),
        ({"bucket_cap_mb_list": [16 * KIB, 32 * KIB]}, [(0, 0), (1, 2), (3, 4), (5, 5)]),
        ({"strategy": [1, 4, 5]}, [(0, 1), (2, 4), (5, 5)]),
        ({"strategy": "per_gradient"}, [(i, i) for i in range(6)]),
        ({"strategy": "single"}, [(0, 5)]),
        ({"strategy": gw.SplitStrategy.by_size([50, 50])}, [(0, 2), (3, 5)]),
        ({"strategy": gw.SplitStrategy.by_size([50, 50]), "find_unused_parameters": True}, [(0, 2), (3, 5)]),
    ],
    ids=str,
)
def test_the_split_that_is_asked_for_holds_from_the_first_step_on(kwargs: dict[str, Any], expected: list[Any]) -> None:
    for seen in pool.run(2, segments_of, 6, kwargs):
        assert seen == [expected, expected, expected]


def by_registry(rank: int, world_size: int) -> list[list[int]]:
    """The registry's strategy, changed between two steps, on a wrapper without and one with a strategy of its own."""
    gw.set_split_strategy_by_idx([1, 3])
    free = gw.DistributedDataParallel(layers(4))
    fixed = gw.DistributedDataParallel(layers(4), strategy="single")
    seen = []
    for step in range(4):
        if step == 2:
            gw.set_split_strategy_by_size([25, 25, 50])
        for model in (free, fixed):
            model(torch.ones(2, 64)).sum().backward()
        seen.append([s.last for s in free.segments])
    return [*seen, [s.last for s in fixed.segments]]


def test_a_wrapper_without_a_strategy_follows_the_registry_and_one_with_a_strategy_does_not() -> None:
    for first, second, _, last, fixed in pool.run(2, by_registry):
        assert (first, second, last, fixed) == ([1, 3], [1, 3], [0, 1, 3], [3])


# -- groups ------------------------------------------------------------------------------------------------------------------


def in_groups(rank: int, world_size: int, way: str) -> float:
    """The gradient of sum(w * (rank + 1)): the mean over the group that the rank is in."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    kwargs = {
        "process_group": {"process_group": halves[rank // 2]},
        "device_mesh": {"device_mesh": mesh["inner"]},
        "outer mesh": {"device_mesh": mesh["outer"]},
        "default": {},
    }[way]
    model = gw.DistributedDataParallel(nn.Linear(1, 1, bias=False), **kwargs)
    for _ in range(2):
        model.zero_grad()
        model(torch.full((1, 1), float(rank + 1))).sum().backward()
    return float(model.module.weight.grad)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("process_group", [1.5, 1.5, 3.5, 3.5]),
        ("device_mesh", [1.5, 1.5, 3.5, 3.5]),
        ("outer mesh", [2.0, 3.0, 2.0, 3.0]),
        ("default", [2.5] * 4),
    ],
)
def test_the_average_is_over_the_group_that_is_given(way: str, expected: list[float]) -> None:
    assert pool.run(4, in_groups, way) == expected


def bad_groups(rank: int, world_size: int) -> list[str]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))
    texts = []
    for kwargs in ({"device_mesh": mesh}, {"device_mesh": mesh["a"], "process_group": dist.group.WORLD}):
        with pytest.raises(RuntimeError) as caught:
            gw.DistributedDataParallel(small(), **kwargs)
        texts.append(str(caught.value))
    return texts


def test_a_mesh_of_two_axes_and_two_groups_at_once_are_refused() -> None:
    two_axes, twice = pool.run(2, bad_groups)[0]
    assert "Only 1D device mesh" in two_axes
    assert "Cannot specify both process_group and device_mesh" in twice
