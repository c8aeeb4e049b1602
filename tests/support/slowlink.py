"""A link of known speed: every message takes alpha + beta x bytes on one channel, whatever the machine does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from gradweave.reduce import Dense
from gradweave.reduce.base import Divisor, Message


class SlowPending:
    """A message that the channel has not delivered yet."""

    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        """Wait for the delivery."""
        self._future.result()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back at the delivery."""
        self._future.add_done_callback(lambda _: callback())


class SlowLink(Dense):
    """The dense all-reduce behind a channel that sleeps."""

    def __init__(self, alpha_s: float, beta_s_per_byte: float) -> None:
        self.alpha_s, self.beta_s_per_byte = alpha_s, beta_s_per_byte
        self._channel = ThreadPoolExecutor(1)

    def start(self, message: Message, state: None, divisor: Divisor) -> Any:
        """Send for real, deliver late."""
        work = super().start(message, state, divisor)

        def deliver() -> None:
            work.wait()
            time.sleep(self.alpha_s + self.beta_s_per_byte * message.gradients.numel() * message.flat.element_size())

        return SlowPending(self._channel.submit(deliver))

    def close(self) -> None:
        """End the channel."""
        self._channel.shutdown(wait=False)


class Pause(torch.autograd.Function):
    """The identity, whose backward takes a while without the processor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Paced(nn.Module):
    """Layers of equal size whose backward takes `seconds` each."""

    def __init__(self, layers: int = 6, width: int = 64, seconds: float = 0.012) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Last layer first in backward."""
        for layer in self.layers:
            x = layer(Pause.apply(x, self.seconds))
        return x
