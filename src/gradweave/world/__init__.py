"""Who we are: the process world, named groups and agreement checks across ranks.

Steps: `init` joins the world that torchrun describes (or a world of one), `new_group` names a part of it, `as_group` accepts
whatever a user may pass as a group, `agree.agree` stops ranks that differ. `names` alone needs no torch, so importing this
package does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradweave._lazy import attribute_loader
from gradweave.world.names import reset_registries

if TYPE_CHECKING:
    from gradweave.world.groups import Group, as_group, control_group, new_group, private_group, rank, size
    from gradweave.world.setup import init, is_initialized, local_rank, local_size, shutdown

_HOMES = {
    "setup": ("init", "is_initialized", "local_rank", "local_size", "shutdown"),
    "groups": ("Group", "as_group", "control_group", "new_group", "private_group", "rank", "size"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Group",
    "as_group",
    "control_group",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "new_group",
    "private_group",
    "rank",
    "reset_registries",
    "shutdown",
    "size",
]


__getattr__ = attribute_loader(__name__, _HOME_OF)
