"""An optimizer that is another one to everybody who looks: schedulers, GradScaler, hooks, checkpoints.

State, groups and defaults are the wrapped optimizer's own objects, and every name that is not found here is looked up there.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from gradweave.sync import Engine


class Facade(torch.optim.Optimizer):
    """Delegates to `_wrapped`; `_engine` is asked to finish when GradScaler reads gradients."""

    _wrapped: torch.optim.Optimizer
    _engine: Engine | None

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's groups.

        When GradScaler asks, who reads gradients through them, the reductions are finished first; nobody else causes one.
        """
        if self._engine is not None and self._engine.in_flight and sys._getframe(1).f_code.co_name == "_unscale_grads_":
            self._engine.finish()
        return self._wrapped.param_groups

    @param_groups.setter
    def param_groups(self, value: list[dict[str, Any]]) -> None:
        self._wrapped.param_groups = value

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's state."""
        return self._wrapped.state

    @state.setter
    def state(self, value: Any) -> None:
        self._wrapped.state = value

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's defaults."""
        return self._wrapped.defaults

    @defaults.setter
    def defaults(self, value: dict[str, Any]) -> None:
        self._wrapped.defaults = value

    def __getattr__(self, name: str) -> Any:
        """Everything else is the wrapped optimizer's."""
        if name == "_wrapped":
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state_dict: it loads into the plain optimizer, and the other way round."""
        return self._wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load into the wrapped optimizer."""
        self._wrapped.load_state_dict(state_dict)
