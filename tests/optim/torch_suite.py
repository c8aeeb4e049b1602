"""PyTorch's own DDP tests, run on Gradweave's class.

torch ships its tests in `torch/testing/_internal/distributed/distributed_test.py`. They take the class from
`torch.nn.parallel`, so it is replaced before they are imported. torch spawns processes anew for every test, which costs
seconds each; here one pair of processes runs them all, with a process group of its own per test, as there.
"""

from __future__ import annotations

import os
import traceback
from typing import Any


def run_suite(rank: int, world_size: int, names: list[str]) -> dict[str, tuple[str, int]]:
    """Run tests of torch's suite in this process and return per test ("passed" or a traceback, wrappers constructed).

    Stops after the first test that does not pass: its peer may be left in the middle of a collective.
    """
    constructed = _replace_class()
    suite = _suite()
    results: dict[str, tuple[str, int]] = {}
    for name in names:
        constructed.clear()
        outcome = _run_one(suite, name, rank, world_size)
        results[name] = (outcome, len(constructed))
        if outcome != "passed":
            break
    return results


def _replace_class() -> list[str]:
    """Put our class where torch's is and note every construction."""
    import torch.nn.parallel

    import gradweave

    constructed: list[str] = []
    kind: Any = gradweave.DistributedDataParallel
    original = kind.__init__

    def counting(self: Any, *args: Any, **kwargs: Any) -> None:
        constructed.append(type(self).__module__)
        original(self, *args, **kwargs)

    kind.__init__ = counting
    torch.nn.parallel.DistributedDataParallel = kind
    return constructed


def _suite() -> Any:
    from torch.testing._internal.distributed import distributed_test as suite

    import gradweave

    class TestDistributed(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
        """torch's tests, in a process that is a rank already."""

    assert suite.DistributedDataParallel is gradweave.DistributedDataParallel, "imported before the class was replaced"
    return TestDistributed


def _run_one(suite: Any, name: str, rank: int, world_size: int) -> str:
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed

    test = suite(name)
    test.rank = rank
    store = os.path.join(os.environ["TEMP_DIR"], f"store_{name}")
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
        set_rng_seed()
        getattr(test, name)()
        test._barrier()
        dist.destroy_process_group()
    except BaseException as error:  # a skip of torch's is SystemExit or SkipTest: it counts as a failure here
        return "".join(traceback.format_exception(error))
    return "passed"
