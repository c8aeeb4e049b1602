"""Deciding the split: the cost of communication, the exact best plan, its certificate. Pure Python."""

from gradweave.model.cost import AffineCost, TableCost, fit_affine
from gradweave.tune.problem import Problem, make_problem
from gradweave.tune.solve import Solution, solve
from gradweave.tune.solvefile import parse_problem, read_problem, solution_dict, solve_file

__all__ = [
    "AffineCost",
    "Problem",
    "Solution",
    "TableCost",
    "fit_affine",
    "make_problem",
    "parse_problem",
    "read_problem",
    "solution_dict",
    "solve",
    "solve_file",
]
