"""Training on 2, 3 and 4 ranks equals the single process on the full batch.

MLP, conv net with batch-norm, conv net with statistics over ranks, GPT with tied embedding, LSTM, sparse embedding; 7 splits,
overlap on and off, 1 and 3 micro-batches, float32, float64, bfloat16, complex64, SGD with momentum and AdamW, both wrappers.
`make test` runs a sample in which every pair of these values occurs, `make verify` all of them.

torch's SyncBatchNorm refuses CPU tensors ("expected input tensor to be on GPU"), so the conv net with statistics over ranks
uses `models.SyncedBatchNorm`; torch's own runs in test_sync_batch_norm.py where there is a GPU.
"""

from __future__ import annotations

import functools

import pytest

from tests.parity.cases import SPLITS, WORLDS, Case, full_matrix, pairs, pairwise_sample, segments_of
from tests.parity.harness import Result, run_cases
from tests.support import pool

# Largest |ours - theirs| of a parameter after 3 steps, relative to that parameter's largest magnitude. bfloat16 keeps 8 bits:
# rounded gradients of another batch size move the reference by several units in the last place (2^-8), the formula by few.
REFERENCE = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "bfloat16": 2**-4}
FORMULA = {"float32": 1e-5, "complex64": 1e-5, "float64": 1e-12, "bfloat16": 2**-6}

MATRIX = full_matrix()
SAMPLE = pairwise_sample(MATRIX)
BITS = [
    Case(2, model, dtype, split, overlap, 1, wrapper, "sgd")
    for model, dtype in (("gpt", "float32"), ("mlp", "bfloat16"), ("complex", "complex64"))
    for wrapper in ("optimizer", "ddp")
    for split in (*SPLITS, "single")
    for overlap in (True, False)
]

pytestmark = pytest.mark.timeout(400)


@functools.cache
def _results(cases: tuple[Case, ...]) -> dict[Case, list[Result | str]]:
    """All ranks' results of cases of one world size, by case."""
    by_rank = pool.run(cases[0].world, run_cases, list(cases), timeout=380)
    return {case: [r[nth] for r in by_rank if nth < len(r)] for nth, case in enumerate(cases)}


def check(case: Case, results: list[Result | str]) -> None:
    assert len(results) == case.world, f"{case}: an earlier case failed"
    failed = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, str)]
    assert not failed, f"{case}: {failed}"
    found = [result for result in results if isinstance(result, Result)]
    assert len({result.bits for result in found}) == 1, f"{case}: ranks ended with different parameters"
    for rank, result in enumerate(found):
        where = f"{case}, rank {rank}: {result}"
        assert result.reference <= REFERENCE[case.dtype], where
        assert result.formula is None or result.formula <= FORMULA[case.dtype], where
        assert result.buffers <= REFERENCE[case.dtype], where
        assert result.moved > 0.02, f"{where}: training moved nothing"
        assert case.world > 2 or result.formula_bits in (None, result.bits), f"{where}: bits differ from the formula's"
        assert segments_of(case.split, result.gradients) in (None, result.segments), where


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_ranks_equal_the_single_process(case: Case) -> None:
    check(case, _results(tuple(c for c in SAMPLE if c.world == case.world))[case])


@pytest.mark.verify
@pytest.mark.parametrize("case", MATRIX, ids=str)
def test_ranks_equal_the_single_process_in_the_whole_matrix(case: Case) -> None:
    alike = (case.world, case.model, case.dtype)
    check(case, _results(tuple(c for c in MATRIX if (c.world, c.model, c.dtype) == alike))[case])


@pytest.mark.parametrize("model", ["gpt", "mlp", "complex"])
def test_every_split_gives_the_same_bits_on_two_ranks(model: str) -> None:
    results = _results(tuple(case for case in BITS if case.model == model))
    for case, found in results.items():
        check(case, found)
    assert len(results) == 2 * (len(SPLITS) + 1) * 2
    assert len({result.bits for found in results.values() for result in found}) == 1, {
        str(case): [result.bits for result in found] for case, found in results.items()
    }


def test_the_sample_holds_every_pair_of_values_and_is_small() -> None:
    assert set().union(*map(pairs, SAMPLE)) == set().union(*map(pairs, MATRIX))
    assert {case.world for case in SAMPLE} == set(WORLDS)
    assert len(SAMPLE) < 150
