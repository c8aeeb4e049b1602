"""Rule 5: clipping sees the whole gradient, never a segment; synchronize, unscale, clip, step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gradweave as gw
from tests.semantics.helpers import batch, error, loss_of, mlp, part, sgd, weights, wrapped
from tests.support import pool

MAX_NORM = 0.05


def clipped(rank: int, world_size: int, way: str, strategy: str = "per_gradient", overlap: bool = True) -> tuple[Tensor, list]:
    """Weights after four clipped steps, and the norms that clipping returned."""
    model = mlp()
    optimizer = wrapped(model, strategy=strategy, overlap=overlap)
    norms = []
    for step in range(4):
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        if way == "ours":
            norms.append(float(gw.clip_grad_norm_(model.parameters(), MAX_NORM)))
        elif way == "torch's, synchronized":
            optimizer.synchronize()
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        elif way == "by value":
            gw.clip_grad_value_(model.parameters(), 0.01)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), norms


def reference(by_value: bool = False) -> tuple[Tensor, list]:
    model = mlp()
    optimizer = sgd(model)
    norms = []
    for step in range(4):
        loss_of(model, batch(seed=step)).backward()
        if by_value:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        else:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)))
        optimizer.step()
        optimizer.zero_grad()
    return weights(model), norms


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("strategy", ["per_gradient", "single"])
@pytest.mark.parametrize("way", ["ours", "torch's, synchronized"])
def test_clipping_equals_the_single_process_whatever_the_split(way: str, strategy: str, overlap: bool) -> None:
    expected, norms = reference()
    assert min(norms) > MAX_NORM, "clipping must bite"
    for result, seen in pool.run(2, clipped, way, strategy, overlap):
        assert error(result, expected) < 1e-6
        assert seen == pytest.approx(norms, rel=1e-5)


def test_clipping_by_value_equals_the_single_process() -> None:
    for result, _ in pool.run(2, clipped, "by value"):
        assert error(result, reference(by_value=True)[0]) < 1e-6


def test_torchs_clipping_without_synchronize_raises_instead_of_clipping_half_reduced_gradients() -> None:
    with pytest.raises(gw.StateError, match=r"changed while their reduction was under way.*synchronize\(\) before clipping"):
        pool.run(2, clipped, "torch's, too early")


class Partly(nn.Module):
    """The gradients generated last belong to a layer that is not used after the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(8, 8), mlp()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.body(self.first(x) if self.calls == 1 else x)


def clipped_with_unused(rank: int, world_size: int) -> None:
    model = Partly()
    optimizer = wrapped(model)
    for step in range(3):
        loss_of(model, part(batch(seed=step), rank, world_size)).backward()
        if step:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()


def test_it_raises_too_when_an_unused_parameter_keeps_the_last_segment_back() -> None:
    with pytest.raises(gw.StateError, match="changed while their reduction was under way"):
        pool.run(2, clipped_with_unused)


def scaled(rank: int, world_size: int, clip: str) -> tuple[Tensor, float]:
    """float16 autocast with a GradScaler: synchronize, unscale, clip, step."""
    model = mlp()
    optimizer = wrapped(model)
    return amp_loop(model, optimizer, clip, rank, world_size)


def amp_loop(model: nn.Module, optimizer: torch.optim.Optimizer, clip: str, rank: int, ranks: int) -> tuple[Tensor, float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    norm = torch.zeros(())
    for step in range(4):
        with torch.autocast("cpu", torch.float16):
            x, y = part(batch(seed=step), rank, ranks)
            loss = (model(x).float() - y).square().mean()
        scaler.scale(loss).backward()
        if clip:
            if clip == "explicit":
                optimizer.synchronize()
            scaler.unscale_(optimizer)
            norm = gw.clip_grad_norm_(model.parameters(), MAX_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return weights(model), float(norm)


@pytest.mark.parametrize("clip", ["explicit", "implicit", ""])
def test_gradscaler_unscales_reduced_gradients(clip: str) -> None:
    model = mlp()
    expected, norm = amp_loop(model, sgd(model), "implicit" if clip else "", 0, 1)
    for result, seen in pool.run(2, scaled, clip):
        assert error(result, expected) < 2e-3  # float16 activations of half batches
        assert seen == pytest.approx(norm, rel=2e-2)
    unclipped = mlp()
    assert error(weights(unclipped), expected) > 2e-2, "training must move the weights further than the tolerance"
