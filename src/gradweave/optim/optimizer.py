"""The distributed optimizer: wraps any torch optimizer so that its gradients are averaged over ranks while backward runs.

    g <- mean over ranks (and micro-batches) of the local gradients, segment by segment, behind backward;   then the wrapped
    step

The wrapper *is* a `torch.optim.Optimizer` and shares the wrapped one's state, so schedulers, GradScaler, hooks, `state_dict`
and pickle behave as they do without it. Cost per rank and step on a ring: 2(p-1)/p times the bytes of the gradients. Cannot
be combined with DistributedDataParallel on the same parameters: both would reduce them.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch

from gradweave.collectives import allreduce, broadcast
from gradweave.errors import ConfigError, StateError
from gradweave.model import Segment
from gradweave.optim import naming
from gradweave.optim.facade import Facade
from gradweave.optim.forward import watch_forward
from gradweave.optim.registry import check_free, claim, next_label
from gradweave.split import SplitStrategy
from gradweave.sync import Engine, EngineOptions
from gradweave.sync.options import check_timeout
from gradweave.trace.recorder import Recorder
from gradweave.world import as_group

_log = logging.getLogger("gradweave.sync")


class DistributedOptimizer(Facade):
    """Averages gradients over ranks during backward, then lets the wrapped optimizer step.

    Args:
        optimizer: any `torch.optim.Optimizer`; it is wrapped, not copied.
        model_or_named_parameters: the model (best: its forward is then seen in traces), or pairs of name and parameter.
        strategy: which gradients travel together: a `SplitStrategy`, a list of last indices, the path of a plan file, one of
            "default", "hccl_default", "single", "per_gradient"; None takes what `set_split_strategy_*` says for the group,
            else the default.
        group: the ranks: a name, a torch ProcessGroup, a DeviceMesh of one axis.
        op: "average" or "sum" over ranks; the micro-batches that `accumulate` counts are averaged in both.
        overlap: True reduces behind backward, False after it.
        accumulate: number of backward passes per step; their gradients are averaged, and travel once.
        reduce: "dense", the backend's all-reduce; "ordered" sums in rank order: equal bits for every split (see
            `gradweave.reduce.ordered`).
        reduce_dtype: dtype in which gradients are summed. None: float32 for half precision gradients, their own otherwise.
        weight: a function that returns the weight of this rank's micro-batch (its number of tokens); the result is the
            weighted mean.
        broadcast_parameters: send rank 0's parameters (and the model's buffers) to all ranks at construction.
        timeout: seconds after which a reduction that does not finish is an error; None takes the group's.
        record: keep the events of the last iterations for reports.
        label: name in traces, logs and errors; None numbers the wrappers.

    Raises:
        ConfigError: a bad value, or parameters that another wrapper reduces already.
        SplitError: the strategy does not fit the model.
        MismatchError: ranks built different models, strategies or options.

    Example:
        >>> import torch, gradweave as gw
        >>> gw.init()
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> optimizer.step(); optimizer.zero_grad()
        >>> [(s.first, s.last) for s in optimizer.segments]
        [(0, 1)]
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model_or_named_parameters: torch.nn.Module | Iterable[tuple[str, torch.nn.Parameter]],
        *,
        strategy: Any = None,
        group: Any = "world",
        op: str = "average",
        overlap: bool = True,
        accumulate: int = 1,
        reduce: str = "dense",
        reduce_dtype: torch.dtype | None = None,
        weight: Callable[[], float] | None = None,
        broadcast_parameters: bool = True,
        timeout: float | timedelta | None = None,
        record: bool = True,
        label: str | None = None,
    ) -> None:
        _check_wrapped(optimizer)
        self._wrapped = optimizer
        self._strategy, self._group_like = strategy, group
        source = model_or_named_parameters
        self._options = EngineOptions(
            op=op,
            overlap=overlap,
            accumulate=accumulate,
            reduce=reduce,
            reduce_dtype=reduce_dtype,
            weight=weight,
            timeout_s=check_timeout(timeout),
            record=record,
            label=label or next_label("optimizer"),
            model_name=type(source).__name__ if isinstance(source, torch.nn.Module) else "",
        )
        if isinstance(source, torch.nn.parallel.DistributedDataParallel):
            raise ConfigError(
                "the model is wrapped in torch's DistributedDataParallel, which reduces its gradients already",
                rule="one wrapper reduces a parameter",
                fix="pass model.module, and train it without DistributedDataParallel",
            )
        self._model = source if isinstance(source, torch.nn.Module) else None
        if self._model is not None:
            naming.warn_if_compiled_whole(self._model, self._options)
        self._named = naming.named_parameters_of(source)
        self._attach(broadcast_parameters)

    def _attach(self, broadcast_parameters: bool) -> None:
        """Build the engine and hang the hooks."""
        named = naming.select(self._wrapped, self._named)
        group = as_group(self._group_like)
        check_free(self, named, self._options.label)
        self._engine: Engine | None = Engine(
            named, group=group, strategy=self._strategy, default=SplitStrategy.default(), options=self._options
        )
        claim(self, named)
        self._is_copy = False
        self._places = None if self._model is None else naming.Places(self._model, self._engine.table.known)
        self._forward_hooks = [] if self._model is None else watch_forward(self._model, self._engine)
        if broadcast_parameters:
            broadcast(self._model if self._model is not None else dict(named), root=0, group=group)
        self._said_partial = False

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self._wrapped!r})"

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Finish the reductions, then step the wrapped optimizer.

        Args:
            closure: as in torch; it may be called several times (LBFGS). Each time its gradients are reduced, and its loss
                like them (mean, sum or weighted mean over ranks), so that every rank takes the same decisions.

        Raises:
            CollectiveError: a rank did not come, or died: names collective, group, segment, step and the missing ranks.
            StateError: gradients were changed while they travelled, or the set of parameters has changed.
            MismatchError: ranks have made different numbers of steps, or different calls of `set_split_strategy_*`.
        """
        engine = self._live_engine()
        self._check_parameters()
        if closure is None:
            self._note_partial()
            engine.finish()
            result = self._wrapped.step()
        else:
            result = self._wrapped.step(self._reducing(closure))
        engine.step_done()
        return result

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def reduced() -> Any:
            with torch.enable_grad():
                loss = closure()
            self.synchronize()
            return self._mean_loss(loss)

        return reduced

    def _mean_loss(self, loss: Any) -> Any:
        if loss is None:
            return None
        engine = self._live_engine()
        value = loss.detach().clone() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
        if engine.total_weight is not None:
            share = value * (engine.weight_sum / engine.total_weight)
            return allreduce(share, op="sum", group=engine.pg, check=False)
        return allreduce(value, op=self._options.op, group=engine.pg, check=False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, as in torch. Reductions under way are awaited and thrown away.

        Args:
            set_to_none: True sets `.grad` to None, False fills it with zeros.
        """
        if self._engine is not None:
            self._engine.drop()
        self._wrapped.zero_grad(set_to_none=set_to_none)

    def synchronize(self) -> None:
        """Finish the reductions now, so that gradients can be unscaled, clipped or read.

        The `step()` that follows does not reduce again. Idempotent until the next backward. After fewer backward passes than
        `accumulate` says it reduces the mean of those there were.

        Raises:
            CollectiveError, StateError, MismatchError: as `step`.

        Example:
            >>> import torch, gradweave as gw
            >>> model = torch.nn.Linear(2, 1)
            >>> optimizer = gw.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
            >>> model(torch.ones(1, 2)).sum().backward(); optimizer.synchronize()
            >>> model.weight.grad
            tensor([[1., 1.]])
        """
        self._note_partial()
        self._live_engine().finish()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in this context only accumulate; the first one outside reduces everything.

        Raises:
            ConfigError: `accumulate` counts the micro-batches already.
        """
        engine = self._live_engine()
        if engine.options.accumulate > 1:
            raise ConfigError(
                f"no_sync() with accumulate={engine.options.accumulate}",
                rule="micro-batches are counted in one way only",
                fix="drop one of the two",
            )
        before, engine.sync_enabled = engine.sync_enabled, False
        try:
            yield
        finally:
            engine.sync_enabled = before

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, on all ranks together; they get names `added.<i>` unless the model names them."""
        self._wrapped.add_param_group(param_group)
        self.refresh()

    # -- ours --------------------------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in force; before the first step those that reverse registration order gives."""
        return self._live_engine().segments

    @property
    def recorder(self) -> Recorder:
        """The events of the last iterations on this rank."""
        return self._live_engine().recorder

    @property
    def wrapped(self) -> torch.optim.Optimizer:
        """The optimizer inside."""
        return self._wrapped

    def save_plan(self, path: str | os.PathLike[str], note: str = "") -> None:
        """Write the segments in force as a plan file, for `strategy=path` of a later run of this model.

        Raises:
            StateError: no step has been made, so the order of gradients is not known yet.
            PlanFileError: the file cannot be written.
        """
        self._live_engine().save_plan(path, note)

    def refresh(self) -> None:
        """Look at the parameters anew, on all ranks together.

        For use after freezing, unfreezing, adding or removing some, or after the graph has changed. The order of gradients is
        observed again in the next step.
        """
        engine = self._live_engine()
        reduced = not engine.idle
        if reduced:
            engine.finish()
        self.close()
        known = {id(param) for _, param in self._named}
        if self._model is not None:
            self._named = list(self._model.named_parameters())
            known = {id(param) for _, param in self._named}
        extra = [p for p in naming.optimizer_parameters(self._wrapped) if id(p) not in known]
        taken = len(self._named)
        self._named += [(f"added.{taken + i}", param) for i, param in enumerate(extra)]
        self._attach(broadcast_parameters=True)
        if reduced:
            self._live_engine().mark_reduced()

    def close(self) -> None:
        """Take all hooks off; the optimizer can no longer step through this wrapper."""
        if self._engine is not None:
            self._engine.close()
        for handle in self._forward_hooks:
            handle.remove()
        self._engine, self._forward_hooks = None, []

    def _live_engine(self) -> Engine:
        if self._engine is None and self._is_copy and torch.distributed.is_initialized():
            self._is_copy = False
            self._attach(broadcast_parameters=False)
        if self._engine is not None:
            self._engine.check_open()
        if self._engine is None:
            raise StateError(
                "this DistributedOptimizer is closed, or was unpickled where its group does not exist",
                rule="it needs its process group",
                fix="call gw.init() and wrap the optimizer again",
            )
        return self._engine

    def _note_partial(self) -> None:
        engine = self._live_engine()
        wanted = engine.options.accumulate
        if wanted > 1 and 0 < engine.micro < wanted and not self._said_partial:
            _log.warning(
                "%s: step() after %d of %d backward passes; the gradients are averaged over %d",
                engine.options.label,
                engine.micro,
                wanted,
                engine.micro,
            )
            self._said_partial = True

    def _check_parameters(self) -> None:
        """Notice parameters that were added, or that started to train, behind our back."""
        table = self._live_engine().table
        thawed = [name for name, param in table.frozen if param.requires_grad]
        strangers = [p for p in naming.optimizer_parameters(self._wrapped) if id(p) not in table.known]
        replaced = [] if self._places is None else self._places.replaced()
        if thawed or strangers or replaced:
            what = f"{len(strangers)} parameters were added" if strangers else f"{replaced[:3]} were replaced in the model"
            what = f"{thawed[:3]} were frozen when wrapped and train now" if thawed else what
            raise StateError(
                f"parameters {what}",
                rule="the set of trained parameters is fixed when the optimizer is wrapped",
                fix="call optimizer.refresh() on all ranks after the change (or optimizer.add_param_group to add some)",
            )

    # -- copies ------------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        keep = self.__dict__.copy()
        for name in ("_engine", "_forward_hooks", "_places", "step"):
            keep.pop(name, None)
        keep["_model"] = None
        keep["_named"] = naming.select(self._wrapped, self._named)
        if not isinstance(self._group_like, str):
            keep["_group_like"] = self._engine.group.name if self._engine is not None else "world"
        return keep

    def __deepcopy__(self, memo: dict[int, Any]) -> DistributedOptimizer:
        """A copy of the state and the parameters (those of a model copied in the same call); it shares the group."""
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        state = {key: copy.deepcopy(value, memo) for key, value in self.__getstate__().items() if key != "_group_like"}
        twin.__setstate__({**state, "_group_like": self._group_like})
        return twin

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy serves the copied parameters over the same group.

        It joins the group at its first use, which all ranks make: a copy that only one rank keeps for itself costs nothing.
        """
        self.__dict__.update(state)
        self._engine, self._forward_hooks, self._said_partial, self._is_copy = None, [], False, True


def _check_wrapped(optimizer: object) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ConfigError("the optimizer is distributed already", rule="wrap once", fix="pass the plain torch optimizer")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(
            f"{type(optimizer).__name__} is not an optimizer",
            rule="the first argument is a torch.optim.Optimizer",
            fix="DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)",
        )
