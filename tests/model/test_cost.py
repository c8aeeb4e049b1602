"""The affine cost of a collective: exact where times are exact, unmoved by a slow one in ten, honest where nothing fits."""

from __future__ import annotations

import pytest

from gradweave.model.cost import AffineCost, fit_affine, median_by_size

ALPHA_S, BETA_S_PER_BYTE = 2e-4, 1e-9
SIZES_BYTES = [1 << k for k in range(10, 20)]


def samples() -> list[tuple[int, float]]:
    return [(size, ALPHA_S + BETA_S_PER_BYTE * size) for size in SIZES_BYTES]


def test_cost_is_alpha_a_message_plus_beta_a_byte() -> None:
    assert AffineCost(0.5, 0.25)(6) == 2.0


def test_exact_times_give_back_their_alpha_and_beta() -> None:
    fit = fit_affine(samples())
    assert fit is not None
    assert fit.alpha_s == pytest.approx(ALPHA_S) and fit.beta_s_per_byte == pytest.approx(BETA_S_PER_BYTE)


def test_one_slow_collective_in_ten_does_not_move_the_fit() -> None:
    disturbed = samples()
    disturbed[4] = (disturbed[4][0], 1.0)
    fit = fit_affine(disturbed)
    assert fit is not None
    assert fit.alpha_s == pytest.approx(ALPHA_S, rel=1e-3) and fit.beta_s_per_byte == pytest.approx(BETA_S_PER_BYTE, rel=1e-3)


def test_the_order_of_samples_does_not_matter() -> None:
    assert fit_affine(reversed(samples())) == fit_affine(samples())


def test_repeated_sizes_count_by_their_median() -> None:
    assert median_by_size([(8, 1.0), (4, 2.0), (8, 9.0), (8, 2.0)]) == [(4, 2.0), (8, 2.0)]


def test_alpha_is_never_negative() -> None:
    fit = fit_affine([(10, 0.0), (20, 10.0), (30, 20.0)])
    assert fit == AffineCost(0.0, 1.0)


@pytest.mark.parametrize(
    "unfit",
    [[], [(8, 1.0)], [(8, 1.0), (8, 2.0)], [(8, 1.0), (16, 1.0)], [(8, 2.0), (16, 1.0)]],
    ids=["nothing", "one sample", "one size", "flat", "falling"],
)
def test_there_is_no_fit_where_time_does_not_grow_with_bytes(unfit: list[tuple[int, float]]) -> None:
    assert fit_affine(unfit) is None
