"""From a profile to a plan, with what it will bring.

    ready <- undisturbed;  repeat: plan <- exact best for ready;  ready <- those that the plan's own communication causes

The solver is exact for given ready times; a collective that slows backward moves them, so plan and ready times are found in
turn until the plan repeats (a handful of rounds), and the plan with the least predicted step is taken, the present one
included. Where nothing slows down (a GPU, as a rule) the first round is exact and the certificate is the solver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradweave.tune.fit import CostFit, fit_cost
from gradweave.tune.problem import make_problem
from gradweave.tune.profile import Prediction, Profile, predict
from gradweave.tune.solve import solve_problem

_ROUNDS = 6
_SLACK = 0.001


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan and what is predicted of it and of the present one.

    Attributes:
        plan: last index of each segment.
        predicted, present: the step under this plan, and under the one in force.
        bound_s: no plan makes the step shorter: undisturbed ready times, affine cost (a table's own optimum otherwise).
        fit: the cost that was used.
    """

    plan: tuple[int, ...]
    predicted: Prediction
    present: Prediction
    bound_s: float
    fit: CostFit

    @property
    def gain(self) -> float:
        """Predicted share of the step that is saved."""
        return 1 - self.predicted.step_s / self.present.step_s if self.present.step_s > 0 else 0.0


def decide(
    profile: Profile,
    present: Sequence[int],
    *,
    forced: Sequence[int] = (),
    max_bytes: int | None = None,
    max_segments: int | None = None,
) -> Decision:
    """Choose the plan for the next iterations.

    Args:
        profile: ready times, samples and slow-down.
        present: the plan in force.
        forced, max_bytes, max_segments: as in `gradweave.tune.solve`.

    Raises:
        ConfigError: the profile has no sample of a collective.

    Example:
        >>> profile = Profile((0.0, 2.0, 5.0), (2, 1, 1), ((0, 3.0), (4, 7.0)), 0.0, 1)
        >>> decide(profile, (2,)).plan
        (0, 2)
    """
    fit = fit_cost(profile.samples)
    now = predict(profile, fit.cost, present)
    best, best_prediction = tuple(present), now
    ready, tried = profile.ready_s, set()
    bound = 0.0
    for round_ in range(_ROUNDS):
        problem = make_problem(
            ready, profile.sizes_bytes, fit.cost, forced=forced, max_bytes=max_bytes, max_segments=max_segments
        )
        solution = solve_problem(problem, _SLACK * now.step_s)
        if round_ == 0:
            bound = solution.bound_s
        if solution.plan in tried:
            break
        tried.add(solution.plan)
        prediction = predict(profile, fit.cost, solution.plan)
        if prediction.step_s < best_prediction.step_s:
            best, best_prediction = solution.plan, prediction
        ready = prediction.ready_s
    return Decision(best, best_prediction, now, bound, fit)
