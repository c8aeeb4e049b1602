"""What ranks agree on: the order after the first window, a change of plan, the weight of a step.

Each is one exchange of small objects on the control group, at a moment that all ranks reach.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gradweave.errors import ConfigError
from gradweave.model import Segment, segments_from_boundaries
from gradweave.sync import completion
from gradweave.sync.flight import Launcher
from gradweave.sync.layout import Layout
from gradweave.sync.table import Slot
from gradweave.world.agree import exchange

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine


def provisional_segments(engine: Engine) -> tuple[Segment, ...]:
    """The segments that reverse registration order gives, before the true order has been seen."""
    slots = _in_plan_order(engine, list(reversed(engine.table.slots)))
    infos = [slot.info for slot in slots]
    return segments_from_boundaries(engine.plan.boundaries(engine.plan.strategy, infos), [i.size_bytes for i in infos])


def settle(engine: Engine) -> None:
    """End of the first window: agree on order, firings, backwards and strategy; lay out the buffers."""
    if completion.changed_since_first_backward(engine):
        raise completion.touched(engine)
    seen = gather(engine, _observed(engine), "exchange of the gradient order")
    engine.plan.accept([rank["plan"] for rank in seen], engine.group.ranks, engine.step)
    slots = engine.table.slots
    for slot in slots:
        slot.expected = max(rank["fires"][slot.pid] for rank in seen) or 1
        kinds = {rank["kinds"][slot.pid] for rank in seen}
        slot.sparse = "sparse" in kinds and "dense" not in kinds
    if engine.options.accumulate == 1 and not engine.options.finish_in_backward:
        engine.backwards = max(1, *(rank["backwards"] for rank in seen))
    reference = next((rank for rank in seen if rank["backwards"]), seen[0])
    order = _in_plan_order(engine, [slots[pid] for pid in reference["order"]])
    engine.layout = Layout(order, engine.pg, engine.group.size, engine.reducer)
    lay_out(engine)


def _observed(engine: Engine) -> dict[str, Any]:
    slots = engine.table.slots
    fired = sorted((slot for slot in slots if slot.sequence), key=lambda slot: slot.sequence)
    silent = [slot for slot in reversed(slots) if not slot.sequence]
    return {
        "order": [slot.pid for slot in [*fired, *silent]],
        "fires": [slot.fires for slot in slots],
        "kinds": [_kind(slot) for slot in slots],
        "backwards": engine.micro,
        "plan": engine.plan.offer(),
    }


def _kind(slot: Slot) -> str:
    if not slot.used or slot.param.grad is None:
        return "none"
    return "dense" if slot.param.grad.layout is torch.strided else "sparse"


def _in_plan_order(engine: Engine, slots: list[Slot]) -> list[Slot]:
    names = engine.plan.strategy.order
    if names is None:
        return slots
    by_name = {slot.name: slot for slot in slots}
    return [by_name[name] for name in names]


def lay_out(engine: Engine, announce: bool = True) -> None:
    """Cut the buffers into the segments of the plan in force and tell everybody who asks (a tuner tries plans silently)."""
    layout = engine.layout
    assert layout is not None
    layout.apply(engine.plan.boundaries(engine.plan.strategy, layout.infos))
    engine.launcher = Launcher(layout, engine.recorder, engine.watch, engine.lane)
    engine.recorder.set_gradients(layout.infos)
    if announce:
        engine.plan.announce(layout.segments)


def change_plan(engine: Engine) -> None:
    """Between two iterations, on all ranks: take up what the registry says, if all ranks were told the same."""
    offers = gather(engine, engine.plan.offer(), "agreement on the new split strategy")
    engine.plan.accept(offers, engine.group.ranks, engine.step)
    order = _in_plan_order(engine, engine.layout.order if engine.layout else [])
    if engine.layout is not None and order != engine.layout.order:
        engine.layout = Layout(order, engine.pg, engine.group.size, engine.reducer)
    lay_out(engine)


def take_weight(engine: Engine, agree_now: bool) -> None:
    """Read this micro-batch's weight; in the last backward of the window also agree on the sum of all."""
    assert engine.options.weight is not None
    given = engine.options.weight()
    weight = float(given) if isinstance(given, (int, float, torch.Tensor)) else math.nan
    if not math.isfinite(weight) or weight < 0:
        raise ConfigError(
            f"weight() returned {given!r}", rule="a weight is a finite number, 0 or more", fix="return the number of tokens"
        )
    if engine.weight_sum == 0.0 and weight > 0.0:
        engine.weight_unit = weight  # gradients are scaled by ratios of weights: token counts would overflow half precision
    engine.weight_now = weight / engine.weight_unit
    engine.weight_sum += weight
    if agree_now:
        agree_weight(engine)


def agree_weight(engine: Engine) -> None:
    """Sum the weights of all ranks: the divisor of this window, known before any gradient is divided."""
    total = torch.tensor([engine.weight_sum], dtype=torch.float64)
    with engine.watch.naming("all_reduce of the step's weight"):
        engine.control.allreduce([total]).wait()
    engine.total_weight = float(total.item()) or 1.0


def gather(engine: Engine, value: Any, what: str) -> list[Any]:
    """One value from each rank, in rank order; `what` names the exchange in errors."""
    engine.watch.at(what)
    with engine.watch.naming(what):
        return exchange(value, engine.control, what)
