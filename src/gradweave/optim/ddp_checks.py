"""What the drop-in checks before a training forward: the same parameters, a backward that ended, gradients for all."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradweave.optim.ddp import DistributedDataParallel


def check_trained(ddp: DistributedDataParallel) -> None:
    """The wrapped parameters are the module's, and none that was frozen trains."""
    thawed = [name for name, param in ddp._engine.table.frozen if param.requires_grad]
    replaced = ddp._places.replaced()
    if thawed or replaced:
        what = f"{thawed[:3]} were frozen when wrapped and train now" if thawed else f"{replaced[:3]} were replaced"
        raise ddp._engine.error(
            f"parameters {what}",
            rule="the set of trained parameters is fixed when the module is wrapped",
            fix="close() this wrapper and wrap the module again, on all ranks",
        )


def check_ended(ddp: DistributedDataParallel) -> None:
    """A backward that raised left this rank's gradients incomplete: the others wait for them, or have others."""
    if ddp._engine.tracker.unended:
        ddp._engine.broken = ddp._engine.error(
            "the backward before this forward did not end: it raised",
            rule="a reduction that has begun is finished by all ranks",
            fix="restart from the last checkpoint; to skip a bad batch, let all ranks skip it before backward",
        )
        raise ddp._engine.broken


def check_all_used(ddp: DistributedDataParallel) -> None:
    """DDP's error for parameters without gradient, raised where DDP raises it: in the forward that follows."""
    missing = ddp._engine.incomplete
    if ddp.find_unused_parameters or ddp.static_graph or not missing:
        return
    names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
    message = (
        "Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that "
        f"your module has parameters that were not used in producing loss on some rank: {names}"
    )
    error = ddp._engine.error(
        message,
        rule="every parameter takes part in the loss",
        fix="pass find_unused_parameters=True, or freeze these parameters",
    )
    ddp.logger.log_error(str(error))
    raise error
