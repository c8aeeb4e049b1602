"""The constructor arguments of the DDP drop-in: checked as torch checks them, resolved, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.utils._pytree import tree_map

from gradweave.errors import ConfigError, StateError
from gradweave.split import SplitStrategy

_MIB = 1024 * 1024


_INSTEAD = {
    "delay_all_reduce_named_params": "use strategy= to choose what travels when",
    "param_to_hook_all_reduce": "use strategy= to choose what travels when",
    "mixed_precision": "use reduce_dtype= and torch.autocast",
    "skip_all_reduce_unused_params": "leave it out, or freeze the parameters that are never used",
}


def refuse(check_reduction: bool, values: tuple[Any, ...]) -> None:
    """Refuse the arguments of `_INSTEAD`, in its order, where given; warn of what torch itself has given up."""
    if check_reduction:
        warnings.warn("check_reduction is deprecated and ignored", FutureWarning, stacklevel=3)
    for (name, instead), value in zip(_INSTEAD.items(), values, strict=True):
        if value is not None and value is not False:
            raise ConfigError(f"{name}={value!r}", rule=f"this drop-in does not support {name}", fix=instead)


def resolve_group(process_group: Any, device_mesh: Any) -> tuple[Any, Any]:
    """The process group of the wrapper, from a group, a one-dimensional mesh or the default."""
    if process_group is not None and device_mesh is not None:
        raise StateError(
            "Cannot specify both process_group and device_mesh arguments.",
            rule="the ranks are given once",
            fix="drop one of the two",
        )
    if device_mesh is not None:
        if device_mesh.ndim != 1:
            raise StateError(
                f"Only 1D device mesh is supported, but got {device_mesh}.", rule="one axis", fix="pass mesh['data']"
            )
        return device_mesh.get_group(mesh_dim=0), device_mesh
    if process_group is not None:
        return process_group, None
    from gradweave.world.groups import as_group

    return as_group("world").pg, None


def check_default_group(process_group: Any) -> None:
    """Only a wrapper on the default group can be pickled: another group has no name that survives."""
    if process_group is not dist.group.WORLD:
        raise StateError(
            "DDP Pickling/Unpickling are only supported when using DDP with the default process group.",
            rule="a pickled wrapper is rebuilt on the default group",
            fix="save module.state_dict() instead",
        )


def check_module(module: Module, ignore: set[str]) -> list[torch.nn.Parameter]:
    """The module's parameters; StateError when none requires a gradient or one has no shape yet."""
    params = [param for name, param in module.named_parameters() if name not in ignore]
    if not any(param.requires_grad for param in params):
        raise StateError(
            "DistributedDataParallel is not needed when a module doesn't have any parameter that requires a gradient.",
            rule="something is trained",
            fix="use the module itself",
        )
    if any(isinstance(param, torch.nn.parameter.UninitializedParameter) for param in params):
        raise StateError(
            "Modules with uninitialized parameters can't be used with `DistributedDataParallel`.",
            rule="every parameter has a shape",
            fix="run a dummy forward pass to correctly initialize the modules",
        )
    return params


def check_devices(
    params: Sequence[torch.nn.Parameter], device_ids: Any, output_device: Any
) -> tuple[list[int] | None, Any, torch.device]:
    """`device_ids`, `output_device` and the module's device."""
    devices = {param.device for param in params}
    kinds = {device.type for device in devices}
    if len(kinds) != 1:
        raise ConfigError(
            f"parameters lie on {sorted(kinds)}", rule="one type of device", fix="move the module to one type of device"
        )
    if device_ids is not None and len(device_ids) > 1:
        raise ConfigError(
            f"device_ids={device_ids}",
            rule="device_ids can only be None or contain a single element",
            fix="one process per device",
        )
    device = params[0].device
    if not device_ids or device.type == "cpu" or len(devices) > 1:
        if device_ids or output_device:
            raise ConfigError(
                f"device_ids={device_ids}, output_device={output_device} with parameters on {sorted(map(str, devices))}",
                rule="device_ids and output_device are for modules on one accelerator",
                fix="leave both out",
            )
        return None, None, device
    index = torch.device(device_ids[0]).index if not isinstance(device_ids[0], int) else device_ids[0]
    return [index], index if output_device is None else output_device, device


def buffer_flags(broadcast_buffers: bool | None, forward_sync_buffers: bool | None) -> tuple[bool, bool]:
    """Whether buffers are synchronised in forward, and at construction."""
    if forward_sync_buffers is not None:
        if broadcast_buffers is not None:
            warnings.warn("broadcast_buffers is ignored when forward_sync_buffers is given", FutureWarning, stacklevel=3)
        return forward_sync_buffers, True
    if broadcast_buffers is not None:
        warnings.warn("broadcast_buffers is deprecated: use forward_sync_buffers", FutureWarning, stacklevel=3)
    effective = True if broadcast_buffers is None else broadcast_buffers
    return effective, effective


def caps_bytes(cap_mb: float | None, caps_mb: Sequence[float] | None) -> tuple[int, list[int]]:
    """`bucket_bytes_cap` and `bucket_bytes_cap_list`, as DDP exposes them."""
    return int((25 if cap_mb is None else cap_mb) * _MIB), [int(cap * _MIB) for cap in caps_mb or ()]


def strategy(given: Any, cap_mb: float | None, caps_mb: Sequence[float] | None) -> Any:
    """The split that the arguments ask for; None leaves it to the registry and the default."""
    chosen = [
        name
        for name, value in (("strategy", given), ("bucket_cap_mb", cap_mb), ("bucket_cap_mb_list", caps_mb))
        if value is not None
    ]
    if len(chosen) > 1:
        raise ConfigError(
            f"{' and '.join(chosen)} are given", rule="the split is given in one way", fix=f"keep only {chosen[0]}"
        )
    if caps_mb is not None:
        return SplitStrategy.caps_mib(list(caps_mb))
    return given if cap_mb is None else SplitStrategy.caps_mib(cap_mb)


def to_device(inputs: Any, kwargs: Any, device_ids: list[int] | None, device: torch.device) -> tuple[Any, Any]:
    """Inputs on the module's device, when device_ids was given."""
    if not device_ids:
        return inputs, kwargs
    return tree_map(
        lambda leaf: leaf.to(device, non_blocking=True) if isinstance(leaf, torch.Tensor) else leaf, (inputs, kwargs)
    )
