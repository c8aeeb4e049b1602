"""The cost of a collective: affine where it fits, else the table."""

from __future__ import annotations

import pytest

from gradweave.errors import ConfigError
from gradweave.model.cost import AffineCost, TableCost
from gradweave.tune.fit import fit_cost

LINE = [(size, 0.001 + 1e-8 * size) for size in (1_000, 50_000, 400_000, 3_000_000)]


def test_a_line_is_found_in_spite_of_outliers():
    fit = fit_cost([*LINE, *LINE, *LINE, *((size, 9 * seconds) for size, seconds in LINE)])
    assert isinstance(fit.cost, AffineCost) and fit.worst_error < 1e-6
    assert fit.cost.alpha_s == pytest.approx(0.001) and fit.cost.beta_s_per_byte == pytest.approx(1e-8)
    assert "1000 us + 100 MB/s" in fit.describe()


def test_a_knee_makes_it_a_table_and_says_how_bad_the_line_was():
    knee = [(size, seconds if size < 100_000 else 3 * seconds) for size, seconds in LINE]
    fit = fit_cost(knee)
    assert fit.is_table and fit.worst_error > 0.10
    assert [fit.cost(size) for size, _ in knee] == [seconds for _, seconds in knee]
    assert "table of 4 sizes" in fit.describe()


def test_times_that_fall_with_bytes_make_a_table_that_does_not():
    fit = fit_cost([(10, 3.0), (20, 2.0), (30, 1.0)])
    assert fit.affine is None and fit.cost(30) == 3.0 and "does not grow" in fit.describe()


def test_without_a_sample_there_is_no_cost():
    with pytest.raises(ConfigError, match="no collective was measured"):
        fit_cost([])


def test_a_table_is_flat_below_linear_between_and_keeps_its_last_slope():
    table = TableCost(((10.0, 1.0), (20.0, 3.0), (30.0, 4.0)))
    assert [table(size) for size in (0, 10, 15, 20, 30, 50)] == [1.0, 1.0, 2.0, 3.0, 4.0, 6.0]
    assert TableCost(((10.0, 1.0),))(99) == 1.0
