"""The figures that DDP exposes through `_get_ddp_logging_data`, from our recorder. Times are in nanoseconds, as there."""

from __future__ import annotations

import os
import weakref
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gradweave.trace.analysis import IterationReport, analyse_iteration

if TYPE_CHECKING:
    from gradweave.optim.ddp import DistributedDataParallel

_ALWAYS_SAMPLED = 10
_DTYPE_NAMES = {"float32": "float", "float64": "double", "float16": "c10::Half", "bfloat16": "c10::BFloat16"}
_ENVIRONMENT = {
    "master_port": "MASTER_PORT",
    "master_addr": "MASTER_ADDR",
    "torch_distributed_debug": "TORCH_DISTRIBUTED_DEBUG",
    "cuda_visible_devices": "CUDA_VISIBLE_DEVICES",
}
_GLOO_ENVIRONMENT = {"gloo_socket_ifname": "GLOO_SOCKET_IFNAME", "gloo_device_transport": "GLOO_DEVICE_TRANSPORT"}
_GLOO_THREADS = 2


class DDPLogger:
    """Collects logging data of one wrapper; iterations 0..9 and then every `sample_rate`-th are sampled, as in DDP."""

    def __init__(self, ddp: DistributedDataParallel) -> None:
        self._ddp = weakref.ref(ddp)
        self.sample_rate = 100
        self._runtime: dict[str, Any] = {}
        self._error: str | None = None
        self._samples: list[dict[str, int]] = []

    def log_error(self, message: str) -> None:
        """Remember an error that the wrapper raised."""
        self._error = message

    def sample(self) -> None:
        """At the begin of a synchronised forward: take the figures of the iteration before, when it is sampled."""
        ddp = self._ddp()
        if ddp is None or not ddp.recorder.has_iterations:
            return
        step = ddp._engine.step
        if step >= _ALWAYS_SAMPLED and step % self.sample_rate:
            return
        iteration = ddp.recorder.last
        if iteration is None:
            return
        figures = _figures(analyse_iteration(iteration))
        self._samples.append(figures)
        averages = {
            f"avg_{key}": int(fmean(sample[key] for sample in self._samples))
            for key in figures
            if not key.endswith(("start", "end"))
        }
        self._runtime = {"iteration": step, **figures, **averages}

    def data(self) -> dict[str, Any]:
        """Everything: construction, runtime, environment, the last error."""
        ddp = self._ddp()
        assert ddp is not None
        error = {} if self._error is None else {"has_error": 1, "error": self._error}
        return {"iteration": 0, **_construction(ddp), **_buckets(ddp), **_environment(ddp), **self._runtime, **error}


def _figures(report: IterationReport) -> dict[str, int]:
    """Nanoseconds of one iteration under DDP's names."""
    event = report.iteration
    fp_end = event.fp_end_s if event.fp_end_s is not None else event.fp_start_s
    starts = [c.event.start_s for c in report.collectives] or [event.bp_end_s]
    ends = [c.event.end_s for c in report.collectives] or [event.bp_end_s]
    backward_s = max(event.bp_end_s - fp_end, 0.0)
    communication_s = max(ends) - min(starts)
    figures = {
        "forward_compute_time": fp_end - event.fp_start_s,
        "backward_compute_time": backward_s,
        "backward_comm_time": communication_s,
        "backward_compute_comm_overlap_time": min(report.hidden_s, backward_s, communication_s),
        "forward_compute_time_start": event.fp_start_s,
        "backward_compute_time_start": fp_end,
        "backward_compute_time_end": event.bp_end_s,
        "backward_comm_time_start": min(starts),
        "backward_comm_time_end": max(ends),
    }
    return {key: int(value * 1e9) for key, value in figures.items()}


def _construction(ddp: DistributedDataParallel) -> dict[str, Any]:
    infos = [slot.info for slot in ddp._engine.table.slots]
    return {
        "world_size": dist.get_world_size(),
        "rank": dist.get_rank(),
        "module_name": type(ddp.module).__name__,
        "device_ids": ", ".join(map(str, ddp.device_ids or ())),
        "output_device": -1 if ddp.output_device is None else ddp.output_device,
        "broadcast_buffers": int(ddp.forward_sync_buffers),
        "bucket_cap_bytes": ddp.bucket_bytes_cap,
        "find_unused_parameters": int(ddp.find_unused_parameters),
        "gradient_as_bucket_view": int(ddp.gradient_as_bucket_view),
        "static_graph": int(ddp.static_graph),
        "backend_name": ddp._engine.group.backend,
        "dtypes": ", ".join(sorted({_DTYPE_NAMES.get(info.dtype, info.dtype) for info in infos})),
        "total_parameter_size_bytes": sum(info.size_bytes for info in infos),
        "num_parameter_tensors": len(infos),
        "comm_hook": "" if ddp._comm_hook is None else getattr(ddp._comm_hook[1], "__qualname__", repr(ddp._comm_hook[1])),
    }


def _buckets(ddp: DistributedDataParallel) -> dict[str, Any]:
    engine = ddp._engine
    sizes = ", ".join(str(segment.size_bytes) for segment in engine.segments)
    data: dict[str, Any] = {
        "bucket_sizes": sizes,
        "has_rebuilt_buckets": int(engine.layout is not None),
        "unused_parameter_size": 0,
    }
    if engine.layout is not None:
        order = [str(slot.pid) for slot in engine.layout.order]
        per_bucket = [" ".join(order[s.first : s.last + 1]) for s in engine.segments]
        data |= {
            "rebuilt_bucket_sizes": sizes,
            "prev_iteration_grad_ready_order_indices": ", ".join(order),
            "rebuilt_per_bucket_param_indices": ", ".join(per_bucket),
        }
    return data


def _environment(ddp: DistributedDataParallel) -> dict[str, Any]:
    data: dict[str, Any] = {key: os.environ.get(name, "N/A") for key, name in _ENVIRONMENT.items()}
    if "gloo" in ddp._engine.group.backend:
        data |= {key: os.environ.get(name, "N/A") for key, name in _GLOO_ENVIRONMENT.items()}
        data["gloo_num_threads"] = _GLOO_THREADS
    return data
