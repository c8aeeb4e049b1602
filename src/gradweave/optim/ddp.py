"""A drop-in for `torch.nn.parallel.DistributedDataParallel`: the same arguments, the same state_dict keys, our engine.

    from gradweave import DistributedDataParallel

Gradients are reduced when `backward()` returns, segments travel in the order in which gradients are generated, from the first
step on and also with unused parameters. `bucket_cap_mb` and `bucket_cap_mb_list` are honoured; `strategy=` says it exactly.
Cannot be combined with DistributedOptimizer on the same parameters, nor with torch's own mixed_precision= and delayed
all-reduce.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn import Module
from torch.optim.optimizer import register_optimizer_step_post_hook

from gradweave.errors import ConfigError, StateError
from gradweave.model import Segment
from gradweave.optim import ddp_args, ddp_checks, ddp_sync
from gradweave.optim.ddp_join import DDPJoinHook, tell_joined
from gradweave.optim.ddp_logging import DDPLogger
from gradweave.optim.naming import Places, find_tensors, warn_if_compiled_whole
from gradweave.optim.registry import check_free, claim, next_label
from gradweave.reduce import Cast, CommHook, Dense
from gradweave.split import SplitStrategy
from gradweave.sync import Engine, EngineOptions
from gradweave.sync.options import check_timeout
from gradweave.trace.recorder import Recorder
from gradweave.world import communicators
from gradweave.world.agree import agree
from gradweave.world.groups import as_group


class DistributedDataParallel(Module, Joinable):
    """Data parallelism at the level of a module; see `torch.nn.parallel.DistributedDataParallel` for the shared arguments.

    Args:
        module: the model, on the device it will run on.
        device_ids, output_device, dim, broadcast_buffers, init_sync, process_group, bucket_cap_mb, find_unused_parameters,
        check_reduction, gradient_as_bucket_view, static_graph, device_mesh, bucket_cap_mb_list, batched_grad_copy,
        forward_sync_buffers: as in torch 2.13. Gradients are always views of the reduction's buffer, and the buffer is left
            alone when somebody still holds gradients of an earlier step; every graph is treated as static_graph would.
        delay_all_reduce_named_params, param_to_hook_all_reduce, mixed_precision, skip_all_reduce_unused_params: refused.
        strategy: which gradients travel together, as in `DistributedOptimizer`; excludes bucket_cap_mb and bucket_cap_mb_list.
        overlap: False reduces after backward has ended.
        reduce: "dense" or "ordered", as in `DistributedOptimizer`.
        reduce_dtype: dtype of the sum; None: float32 for half precision gradients, their own otherwise.
        timeout: seconds after which a reduction that does not finish is an error.
        record: keep the events of the last iterations for reports.
        label: name in traces, logs and errors.

    Raises:
        ConfigError: a value that cannot be honoured. StateError: no parameter requires a gradient.
        MismatchError: ranks built different models.

    Example:
        >>> import torch, gradweave as gw
        >>> gw.init()
        >>> model = gw.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> model(torch.ones(2, 4)).sum().backward()
        >>> list(model.state_dict())
        ['module.weight', 'module.bias']
    """

    def __init__(
        self,
        module: Module,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: Any = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Any = None,
        param_to_hook_all_reduce: Any = None,
        mixed_precision: Any = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: list[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        *,
        strategy: Any = None,
        overlap: bool = True,
        reduce: str = "dense",
        reduce_dtype: torch.dtype | None = None,
        timeout: float | timedelta | None = None,
        record: bool = True,
        label: str | None = None,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        refused = (delay_all_reduce_named_params, param_to_hook_all_reduce, mixed_precision, skip_all_reduce_unused_params)
        ddp_args.refuse(check_reduction, refused)
        self.process_group, self.device_mesh = ddp_args.resolve_group(process_group, device_mesh)
        self.parameters_to_ignore = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
        self.module, self.dim = module, dim
        params = ddp_args.check_module(module, self.parameters_to_ignore)
        self.device_ids, self.output_device, self.device = ddp_args.check_devices(params, device_ids, output_device)
        self.forward_sync_buffers, init_buffers = ddp_args.buffer_flags(broadcast_buffers, forward_sync_buffers)
        self._remember(find_unused_parameters, static_graph, gradient_as_bucket_view, batched_grad_copy)
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self._strategy = ddp_args.strategy(strategy, bucket_cap_mb, bucket_cap_mb_list)
        self.bucket_bytes_cap, self.bucket_bytes_cap_list = ddp_args.caps_bytes(bucket_cap_mb, bucket_cap_mb_list)
        self._options = EngineOptions(
            overlap=overlap,
            reduce=reduce,
            reduce_dtype=reduce_dtype,
            finish_in_backward=True,
            timeout_s=check_timeout(timeout),
            record=record,
            label=label or next_label("ddp"),
            model_name=type(module).__name__,
        )
        self._comm_hook: tuple[Any, Callable[..., Any]] | None = None
        warn_if_compiled_whole(module, self._options)
        self._attach()
        if init_sync:
            ddp_sync.sync_module(self, root=0, buffers=init_buffers)

    def _remember(self, unused: bool, static: bool, views: bool, batched: bool) -> None:
        """Keep the arguments that nothing depends on here, under DDP's names."""
        self.find_unused_parameters, self.static_graph = unused, static
        self.gradient_as_bucket_view, self.batched_grad_copy = views, batched

    def _attach(self) -> None:
        self._attached: Engine | None = None
        named = [(name, param) for name, param in self.module.named_parameters() if name not in self.parameters_to_ignore]
        check_free(self, named, self._options.label)
        reducer = CommHook(self._comm_hook[1], self._comm_hook[0]) if self._comm_hook else None
        self._builtin_hook: str | None = None
        communicators.held_by(self, "process_group")
        self._attached = Engine(
            named,
            group=as_group(self.process_group),
            strategy=self._strategy,
            default=SplitStrategy.default(),
            options=self._options,
            reducer=reducer,
            terms=[f"forward_sync_buffers={self.forward_sync_buffers} find_unused={self.find_unused_parameters}"],
        )
        claim(self, named)
        self._places = Places(self.module, self._attached.table.known)
        self.logger = DDPLogger(self)
        ref = weakref.ref(self)

        def stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            live = ref()
            if live is not None and live._updates_us(optimizer):
                live._close_iteration()

        self._step_hook = register_optimizer_step_post_hook(stepped)
        weakref.finalize(self, self._step_hook.remove)

    @property
    def device_type(self) -> str:
        """Kind of device the parameters lie on."""
        return self.device.type

    @property
    def _engine(self) -> Engine:
        """The engine; a copy gets its own at first use."""
        if self._attached is None:
            self._attach()
        assert self._attached is not None
        return self._attached

    # -- forward and backward ----------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module; in training, arrange that backward reduces the gradients."""
        if self._attached is None and not torch.is_grad_enabled():
            return self.module(*inputs, **kwargs)  # a copy that only evaluates joins no group
        if self._engine.closed:
            if self._engine.world_left and torch.is_grad_enabled():
                self._engine.check_open()
            return self.module(*inputs, **kwargs)
        with torch.autograd.profiler.record_function("DistributedDataParallel.forward"):
            training = torch.is_grad_enabled()
            if training:
                self._before_training_forward()
            work = Join.notify_join_context(self)
            if work is not None or self._join_config.enable:
                tell_joined(self)
            if self.will_sync_module_buffers():
                ddp_sync.sync_buffers(self)
            inputs, kwargs = ddp_args.to_device(inputs, kwargs, self.device_ids, self.device)
            output = self.module(*inputs, **kwargs)
            self.require_forward_param_sync = training and self.require_backward_grad_sync
            self._engine.forward_ended(find_tensors(output))
            return output

    def _before_training_forward(self) -> None:
        engine = self._engine
        engine.tuning_pauses = self._join_config.enable
        engine.sync_enabled = self.require_backward_grad_sync
        ddp_checks.check_trained(self)
        if self.require_backward_grad_sync:
            ddp_checks.check_ended(self)
            self._close_iteration()
            ddp_checks.check_all_used(self)
            self.logger.sample()
        engine.forward_started()

    def _close_iteration(self) -> None:
        if self._engine.reduced:
            self._engine.step_done()

    def _updates_us(self, optimizer: torch.optim.Optimizer) -> bool:
        known = self._engine.table.by_id
        return any(id(param) in known for group in optimizer.param_groups for param in group["params"])

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward copies rank 0's buffers to all ranks first."""
        return self.require_forward_param_sync and self.forward_sync_buffers and bool(ddp_sync.module_buffers(self))

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(module: Module, params_and_buffers_to_ignore: Any) -> None:
        """Leave these parameters and buffers alone, by their full names; called before wrapping, as in torch."""
        module._ddp_params_and_buffers_to_ignore = list(params_and_buffers_to_ignore)

    def synchronize(self) -> None:
        """Gradients are reduced when backward returns; kept so that clipping treats both wrappers alike."""

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes in this context only accumulate gradients; the first one outside reduces the sum."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    # -- hooks and switches ------------------------------------------------------------------------------------------------

    def register_comm_hook(self, state: object, hook: Callable[[object, Any], torch.futures.Future[Tensor]]) -> None:
        """Let `hook(state, bucket) -> Future[Tensor]` reduce every bucket, division included.

        The bucket has the methods of `torch.distributed.GradBucket` (buffer, set_buffer, index, gradients, parameters,
        is_last).
        """
        if not callable(hook):
            self.logger.log_error("Communication hook must be callable.")
            raise TypeError("Communication hook must be callable.")
        if self._comm_hook is not None or self._builtin_hook is not None:
            raise StateError(
                "register_comm_hook or register_builtin_comm_hook can only be called once.",
                rule="one hook per wrapper",
                fix="compose the hooks in one function",
            )
        agree(getattr(hook, "__qualname__", type(hook).__name__), "communication hooks", self._engine.group)
        self._comm_hook = (state, hook)
        self._engine.set_reducer(CommHook(hook, state))

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        name = getattr(comm_hook_type, "name", str(comm_hook_type))
        if name not in ("ALLREDUCE", "FP16_COMPRESS"):
            raise ConfigError(f"built-in hook {name}", rule="ALLREDUCE and FP16_COMPRESS exist", fix="use register_comm_hook")
        agree(name, "built-in communication hooks", self._engine.group)
        self._builtin_hook = name
        self._engine.set_reducer(Dense() if name == "ALLREDUCE" else Cast(Dense(), torch.float16))

    def _set_static_graph(self) -> None:
        if self.static_graph and self._engine.step == 0:
            return
        if self._engine.step > 0 or self._engine.reduced or self._engine.layout is not None:
            message = "_set_static_graph() should be called before training loop starts"
            self.logger.log_error(message)
            raise StateError(message, rule="the graph is declared before the first backward", fix="pass static_graph=True")
        self.static_graph = True

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        return self.logger.data()

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        if sample_rate < 1:
            raise ConfigError(f"sample_rate={sample_rate}", rule="the rate is at least 1", fix="pass 1")
        self.logger.sample_rate = sample_rate

    # -- what the engine did -----------------------------------------------------------------------------------------------

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments in force."""
        return self._engine.segments

    @property
    def recorder(self) -> Recorder:
        """The events of the last iterations on this rank."""
        return self._engine.recorder

    def save_plan(self, path: str | os.PathLike[str], note: str = "") -> None:
        """Write the segments in force as a plan file, for `strategy=path` of a later run of this model.

        Raises:
            StateError: no step has been made, so the order of gradients is not known yet.
            PlanFileError: the file cannot be written.
        """
        self._engine.save_plan(path, note)

    @property
    def broadcast_buffers(self) -> bool:
        """The older name of `forward_sync_buffers`."""
        return self.forward_sync_buffers

    def close(self) -> None:
        """Take the hooks off: the module is a plain module again."""
        self._engine.close()
        self._step_hook.remove()

    # -- uneven inputs -----------------------------------------------------------------------------------------------------

    def join(
        self, divide_by_initial_world_size: bool = True, enable: bool = True, throw_on_early_termination: bool = False
    ) -> Join:
        """Context in which ranks may have different numbers of inputs: those that run out keep the others going.

        Args:
            divide_by_initial_world_size: True divides by the group size, False by the number of ranks that still have inputs.
            enable: False switches the detection off.
            throw_on_early_termination: raise on all ranks as soon as one runs out.
        """
        return Join([self], enable, throw_on_early_termination, divide_by_initial_world_size=divide_by_initial_world_size)

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """The shadow of this wrapper on a rank that has run out of inputs."""
        return DDPJoinHook(self, kwargs.get("divide_by_initial_world_size", True))

    @property
    def join_device(self) -> torch.device:
        """Device of the join protocol's tensors."""
        return self.device

    @property
    def join_process_group(self) -> Any:
        """Group of the join protocol."""
        return self.process_group

    # -- copies ------------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        ddp_args.check_default_group(self.process_group)
        keep = self.__dict__.copy()
        for name in ("process_group", "device_mesh", "_attached", "_places", "logger", "_step_hook", "_comm_hook"):
            keep.pop(name, None)
        return keep

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy serves the copied module over the default group.

        It joins the group at its first use, which all ranks make: a copy that only one rank keeps for itself costs nothing.
        """
        super().__setstate__(state)
        self.process_group, self.device_mesh = ddp_args.resolve_group(None, None)
        self._comm_hook, self._attached, self.logger = None, None, DDPLogger(self)
