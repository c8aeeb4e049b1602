"""The cost of a collective from samples: an affine fit where it fits, else the measured table.

    affine   t(b) = alpha + beta b, Theil-Sen over the median time of each size (`gradweave.model.cost.fit_affine`)
    table    the running maximum of these medians, when the affine fit is off by more than 10 % at any size

Cost: O(m^2) for m distinct sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from gradweave.errors import ConfigError
from gradweave.model.cost import AffineCost, TableCost, fit_affine, median_by_size

WORST_ERROR = 0.10


@dataclass(frozen=True, slots=True)
class CostFit:
    """A cost and how well it fits.

    Attributes:
        cost: what predicts the time of a collective.
        affine: the affine fit, also where it is not used; None when time does not grow with bytes.
        worst_error: largest relative error of the affine fit at a measured size.
        sizes: number of distinct sizes that were measured.
    """

    cost: AffineCost | TableCost
    affine: AffineCost | None
    worst_error: float
    sizes: int

    @property
    def is_table(self) -> bool:
        """Whether the table is used."""
        return isinstance(self.cost, TableCost)

    def describe(self) -> str:
        """Say in one line what was fitted and how well."""
        if self.affine is None:
            return f"table of {self.sizes} sizes (time does not grow with bytes)"
        line = f"{1e6 * self.affine.alpha_s:.0f} us + {1e-6 / max(self.affine.beta_s_per_byte, 1e-18):.0f} MB/s"
        if self.is_table:
            return f"table of {self.sizes} sizes ({line} is off by {100 * self.worst_error:.0f} % somewhere)"
        return f"{line} (within {100 * self.worst_error:.0f} % at {self.sizes} sizes)"


def fit_cost(samples: Iterable[tuple[int, float]], worst_error: float = WORST_ERROR) -> CostFit:
    """Fit the cost of a collective.

    Args:
        samples: (bytes, s) of collectives, waiting for late ranks excluded.
        worst_error: relative error at any size above which the table is used.

    Raises:
        ConfigError: no sample.

    Example:
        >>> fit_cost([(0, 1.0), (10, 2.0), (20, 3.0)]).cost
        AffineCost(alpha_s=1.0, beta_s_per_byte=0.1)
        >>> fit_cost([(0, 1.0), (10, 2.0), (20, 9.0)]).is_table
        True
    """
    points = median_by_size(samples)
    if not points:
        raise ConfigError("no collective was measured", rule="a cost needs one sample at least", fix="train some steps first")
    affine = fit_affine(points)
    rising = accumulate((seconds for _, seconds in points), max)
    table = TableCost(tuple((float(size), at) for (size, _), at in zip(points, rising, strict=True)))
    if affine is None:
        return CostFit(table, None, float("inf"), len(points))
    errors = [abs(affine(size) - seconds) / seconds for size, seconds in points if seconds > 0]
    worst = max(errors, default=0.0)
    return CostFit(affine if worst <= worst_error else table, affine, worst, len(points))
