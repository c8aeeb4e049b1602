"""PyTorch's own DDP tests pass on our class: all of its suite that needs no GPU, Gloo, world size 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.optim.torch_suite import run_suite
from tests.support import pool

GPU_FREE = [
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_ddp_create_graph",
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_ddp_logging_data_cpu",
    "test_static_graph_api_cpu",
    "test_grads_same_across_ranks_with_no_sync",
    "test_dump_DDP_relevant_env_vars",
]
CONSTRUCTS_NOTHING = {"test_dump_DDP_relevant_env_vars"}

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[pool.Outcome]:
    pytest.importorskip("expecttest", reason="torch's suite needs expecttest (the dev extra)")
    folder = tmp_path_factory.mktemp("torch_suite")
    make_folders(folder)
    env = {"BACKEND": "gloo", "TEMP_DIR": str(folder)}
    return pool.fresh(2, run_suite, GPU_FREE, timeout=150, joins_group=False, env=env)


def make_folders(folder: Path) -> None:
    """What torch's runner makes for its barriers."""
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir()


@pytest.mark.parametrize("name", GPU_FREE)
def test_torchs_own_test_passes_on_our_class(outcomes: list[pool.Outcome], name: str) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome.value is not None, f"rank {rank} gave no results: {outcome.text or outcome.error or outcome.exit_code}"
        assert name in outcome.value, f"not reached on rank {rank}: an earlier test of the suite failed"
        result, constructed = outcome.value[name]
        assert result == "passed", f"rank {rank}:\n{result}"
        assert constructed > 0 or name in CONSTRUCTS_NOTHING, f"{name} never constructed our class"
