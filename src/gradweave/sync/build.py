"""What an engine is made of: its plan, agreed on by all ranks, its reducer and its recorder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gradweave.errors import GradweaveError
from gradweave.reduce import Cast, Dense, Ordered, Reducer
from gradweave.split import Auto, SplitStrategy, as_strategy, plan_of, save_plan
from gradweave.sync.device import clock_for
from gradweave.sync.options import EngineOptions
from gradweave.sync.plan import PlanSource
from gradweave.sync.table import ParameterTable
from gradweave.trace.live import save_on_exit
from gradweave.trace.recorder import Recorder
from gradweave.world import setup
from gradweave.world.agree import agree
from gradweave.world.groups import Group, private_group

if TYPE_CHECKING:
    from gradweave.sync.engine import Engine

_HALF = (torch.float16, torch.bfloat16, torch.complex32)


def agreed_plan(
    given: Any, default: SplitStrategy, table: ParameterTable, options: EngineOptions, group: Group, extra: Sequence[str]
) -> PlanSource:
    """Resolve `strategy=` and make sure that all ranks have the same model, plan and options.

    An error that only this rank has must not leave the others waiting: it is told in the exchange, then raised.

    Raises:
        MismatchError: ranks differ. PlanFileError, SplitError, ConfigError: the strategy does not serve this model.
    """
    problem: GradweaveError | None = None
    plan: PlanSource | None = None
    infos = [slot.info for slot in table.slots]
    try:
        plan_file = plan_of(given)
        if plan_file is not None:
            plan_file.check(infos, group_size=group.size, backend=group.backend)
        plan = PlanSource(group.name, options.label, as_strategy(given), default, infos)
        terms = [options.terms(), f"strategy {plan.strategy.describe()} {plan.strategy.digest}"]
    except GradweaveError as error:
        problem, terms = error, [f"refused: {error.what}"]
    try:
        agree([*table.fingerprint(), *terms, *extra], f"{options.label} ({len(infos)} gradients)", group)
    except GradweaveError:
        if plan is not None:
            plan.close()  # a wrapper that was refused has no say in its group's strategy
        raise
    if problem is not None:
        raise problem
    assert plan is not None
    return plan


def auto_of_command(label: str) -> Auto | None:
    """The tuner that `gradweave tune` asks for, for wrappers that name no strategy; None without that command.

    The first wrapper's plan goes to the file that was named, another one's beside it, with its label in the name.
    """
    path = os.environ.get("GRADWEAVE_TUNE")
    if not path:
        return None
    target = Path(path)
    if not label.endswith("0"):
        target = target.with_name(f"{target.stem}-{label}{target.suffix}")
    return Auto(plan_file=target, stop=os.environ.get("GRADWEAVE_TUNE_STOP") == "1")


def topology_of(group: Group) -> str:
    """The group's ranks and how many of them share a host, as plan files hold it."""
    return f"{group.size} ranks, {setup.local_size()} a host"


def save_plan_in_force(engine: Engine, path: str | os.PathLike[str], note: str) -> None:
    """Write an engine's plan to a plan file, with the group it serves.

    Raises:
        StateError: it has made no step.
    """
    group, layout = engine.group, engine.layout
    if layout is None:
        raise engine.error(
            "no step was made",
            rule="a plan names gradients in the order in which they are generated, which the first step shows",
            fix="save the plan after the first step",
        )
    save_plan(
        path,
        layout.infos,
        layout.segments,
        group_size=group.size,
        backend=group.backend,
        topology=topology_of(group),
        note=note,
    )


def default_reducer(table: ParameterTable, options: EngineOptions, group: Group) -> Reducer:
    """What `reduce=` asks for; through another dtype where asked for or where dense gradients are half precision.

    Ordered sums of half precision gradients are float32 sums anyway, so they travel as they are. Makes a communicator for
    them (collective over the group).
    """
    if options.reduce == "ordered":
        ordered = Ordered(private_group(group, f"{options.label}:gather", options.timeout_s))
        return ordered if options.reduce_dtype is None else Cast(ordered, options.reduce_dtype)
    if options.reduce_dtype is None and not any(slot.dtype in _HALF for slot in table.slots):
        return Dense()
    return Cast(Dense(), options.reduce_dtype)


def recorder_for(table: ParameterTable, options: EngineOptions, group: Group) -> Recorder:
    """The engine's recorder; its trace is saved at exit when GRADWEAVE_TRACE_DIR names a folder."""
    recorder = Recorder(
        rank=group.ranks[group.rank],
        world_size=group.size,
        group=group.name,
        backend=group.backend,
        label=options.label,
        enabled=options.record,
        meta=options.meta(),
        clock=clock_for(table.devices),
    )
    recorder.set_gradients([slot.info for slot in table.slots])
    if directory := os.environ.get("GRADWEAVE_TRACE_DIR"):
        save_on_exit(directory)
    return recorder
