"""Communication hooks of the DDP drop-in: torch's own hooks run and give what they give under torch's class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import gradweave as gw
from gradweave.errors import ConfigError, StateError
from tests.support import pool


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def hook_of(name: str) -> tuple[Any, Any]:
    """(state, hook) of torch's by name."""
    from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook

    if name == "powerSGD":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5)
        return state, powerSGD_hook.powerSGD_hook
    if name == "fp16_wrapped":
        return None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)
    if name == "noop":
        return None, debugging_hooks.noop_hook
    return None, getattr(default_hooks, f"{name}_hook")


def train(model: Any, rank: int, steps: int) -> Tensor:
    """Train on this rank's own data; the flat parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
    for _ in range(steps):
        (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def both(rank: int, world_size: int, name: str, steps: int) -> tuple[list[float], list[float], list[float]]:
    """Parameters after training: ours with the hook, torch's with the hook, ours without."""
    results = []
    for kind in (gw.DistributedDataParallel, nn.parallel.DistributedDataParallel):
        model = kind(model_of())
        model.register_comm_hook(*hook_of(name))
        results.append(train(model, rank, steps).tolist())
    results.append(train(gw.DistributedDataParallel(model_of()), rank, steps).tolist())
    return tuple(results)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [("allreduce", 1e-6), ("fp16_compress", 1e-3), ("fp16_wrapped", 1e-3), ("noop", None), ("powerSGD", None)],
)
def test_torchs_default_hooks_give_what_they_give_under_torchs_class(name: str, tolerance: float | None) -> None:
    for ours, theirs, plain in pool.run(2, both, name, 6):
        assert ours == pytest.approx(theirs, abs=1e-6)
        assert tolerance is None or ours == pytest.approx(plain, abs=tolerance)


def powered(rank: int, world_size: int) -> tuple[list[float], float, int, float]:
    """(parameters, loss ratio, the state's iterations, size of the error memory)."""
    model = gw.DistributedDataParallel(model_of())
    state, hook = hook_of("powerSGD")
    model.register_comm_hook(state, hook)
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
    before = float((model.module(x) - y).square().mean())
    flat = train(model, rank, 8)
    after = float((model.module(x) - y).square().mean())
    memory = sum(float(error.abs().sum()) for error in state.error_dict.values())
    return flat.tolist(), after / before, state.iter, memory


def test_powersgd_keeps_its_state_from_step_to_step_and_learns() -> None:
    results = pool.run(2, powered)
    assert results[0][0] == results[1][0]
    for _, ratio, iterations, memory in results:
        assert ratio < 0.98 and iterations >= 2 and memory > 0


# -- the bucket --------------------------------------------------------------------------------------------------------------


def recorded(rank: int, world_size: int, strategy: Any) -> list[list[Any]]:
    """What a hook is given, per step: (index, elements, gradients, parameter names, is_last)."""
    model = gw.DistributedDataParallel(model_of(), strategy=strategy)
    names = {id(p): n for n, p in model.module.named_parameters()}
    steps: list[list[Any]] = []

    def hook(state: list[Any], bucket: Any) -> torch.futures.Future[Tensor]:
        gradients = bucket.gradients()
        assert sum(g.numel() for g in gradients) == bucket.buffer().numel()
        assert all(g.shape == p.shape for g, p in zip(gradients, bucket.parameters(), strict=True))
        assert gradients[0].untyped_storage().data_ptr() == bucket.buffer().untyped_storage().data_ptr()
        carried = [names[id(p)] for p in bucket.parameters()]
        state[-1].append((bucket.index(), bucket.buffer().numel(), carried, bucket.is_last()))
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    model.register_comm_hook(steps, hook)
    for _ in range(3):
        steps.append([])
        model.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
    return [*steps, float(model.module[2].bias.grad[0])]


def test_a_hook_sees_every_segment_once_in_order_and_owns_the_division() -> None:
    for *steps, gradient in pool.run(2, recorded, [0, 1, 3]):
        assert [[bucket[0] for bucket in step] for step in steps] == [[0, 1, 2]] * 3
        assert [[bucket[3] for bucket in step] for step in steps] == [[False, False, True]] * 3
        for step in steps:
            assert sorted(name for bucket in step for name in bucket[2]) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        assert [bucket[1] for bucket in steps[0]] == [bucket[1] for bucket in steps[2]]
        assert gradient == 4.0, "the sum over two ranks of two samples: nobody divided"


def replaced(rank: int, world_size: int) -> float:
    """A hook that sets another buffer and returns a constant."""
    model = gw.DistributedDataParallel(model_of())

    def hook(state: None, bucket: Any) -> torch.futures.Future[Tensor]:
        bucket.set_buffer(torch.full_like(bucket.buffer(), 7.0))
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, hook)
    model(torch.ones(2, 6)).sum().backward()
    return float(model.module[0].weight.grad.mean())


def test_what_the_hooks_future_holds_becomes_the_gradient() -> None:
    assert pool.run(2, replaced) == [7.0, 7.0]


# -- refused, failing, built in ----------------------------------------------------------------------------------------------


def misused(rank: int, world_size: int) -> list[str]:
    model = gw.DistributedDataParallel(model_of())
    texts = []
    with pytest.raises(TypeError) as caught:
        model.register_comm_hook(None, 3)
    texts.append(str(caught.value))
    model.register_comm_hook(*hook_of("allreduce"))
    with pytest.raises(RuntimeError) as again:
        model.register_comm_hook(*hook_of("allreduce"))
    assert isinstance(again.value, StateError)
    with pytest.raises(ConfigError):
        gw.DistributedDataParallel(model_of())._register_builtin_comm_hook("nonsense")
    return [*texts, str(again.value)]


def test_a_second_hook_and_a_hook_that_is_no_function_are_refused() -> None:
    no_function, twice = pool.run(2, misused)[0]
    assert "callable" in no_function
    assert "can only be called once" in twice


def failing(rank: int, world_size: int) -> str:
    model = gw.DistributedDataParallel(model_of())

    def hook(state: None, bucket: Any) -> torch.futures.Future[Tensor]:
        raise ArithmeticError("the hook is broken")

    model.register_comm_hook(None, hook)
    with pytest.raises(Exception) as caught:
        model(torch.ones(2, 6)).sum().backward()
    return f"{type(caught.value).__name__} {caught.value}"


def test_an_error_inside_a_hook_reaches_the_caller_of_backward() -> None:
    assert all("the hook is broken" in text for text in pool.run(2, failing))


def failing_later(rank: int, world_size: int) -> str:
    model = gw.DistributedDataParallel(model_of())

    def hook(state: None, bucket: Any) -> torch.futures.Future[Tensor]:
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_exception(ArithmeticError("the future is broken"))
        return future

    model.register_comm_hook(None, hook)
    with pytest.raises(Exception) as caught:
        model(torch.ones(2, 6)).sum().backward()
    return f"{type(caught.value).__name__} {caught.value}"


def test_an_error_inside_a_hooks_future_reaches_the_caller_of_backward() -> None:
    assert all("the future is broken" in text for text in pool.run(2, failing_later))


def built_in(rank: int, world_size: int, name: str) -> list[float]:
    kind = getattr(dist.BuiltinCommHookType, name)
    model = gw.DistributedDataParallel(model_of())
    model._register_builtin_comm_hook(kind)
    return train(model, rank, 4).tolist()


def test_built_in_hooks_average() -> None:
    exact, half = pool.run(2, built_in, "ALLREDUCE"), pool.run(2, built_in, "FP16_COMPRESS")
    assert exact[0] == exact[1] and half[0] == half[1]
    assert half[0] == pytest.approx(exact[0], abs=2e-3) and half[0] != exact[0]


def with_unused(rank: int, world_size: int) -> list[bool]:
    """A hook and a parameter that nobody uses: its gradient stays None, as without a hook."""
    model = gw.DistributedDataParallel(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), find_unused_parameters=True)
    model.register_comm_hook(*hook_of("allreduce"))
    model.module.forward = lambda x: model.module[0](x).sum()  # type: ignore[method-assign]
    for _ in range(3):
        model(torch.ones(1, 2)).backward()
    return [p.grad is None for p in model.parameters()]


def test_with_a_hook_unused_parameters_keep_no_gradient() -> None:
    assert pool.run(2, with_unused) == [[False, False, True, True]] * 2
