"""Malformed values, each with words that its message must hold."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np

INDICES = [
    ([], "empty"),
    (np.array([], dtype=int), "empty"),
    ([-1, 3], "-1"),
    ([3, 2], "comes after 3"),
    ([2, 2], "appears twice"),
    ([1.0, 2], "float"),
    ([True, 2], "bool"),
    (np.array([True, False]), "bool"),
    (np.array([0.5]), "float"),
    (np.array([[1, 2]]), "not a list"),
    (["1"], "str"),
    ([None], "None"),
    (None, "None"),
    (5, "int"),
    ("20, 100", "str"),
    ({1, 2}, "set"),
    ({1: 2}, "dict"),
    (iter([1]), "not a list"),
    ([[1], [2]], "list"),
]

PERCENTAGES = [
    ([], "empty"),
    ([60, 20, 10], "sum to 90"),
    ([60, 20, 30], "sum to 110"),
    ([100.0002], "sum to 100.0002"),
    ([99.99989], "sum to 99.99989"),
    ([0, 100], "not above 0"),
    ([120, -20], "not above 0"),
    ([math.nan, 100], "not finite"),
    ([math.inf], "not finite"),
    ([10**400], "not finite"),
    ([True, 99], "bool"),
    (["60", 40], "str"),
    ([None, 100], "None"),
    ([Decimal(60), 40], "Decimal"),
    ([60 + 0j, 40], "complex"),
    (None, "None"),
    (100, "not a list"),
    ("100", "str"),
    ({60, 40}, "set"),
]

CAPS = [
    (0, "not above 0"),
    (-1, "not above 0"),
    ([], "empty"),
    ([4, 0], "not above 0"),
    (4.0, "float"),
    ([4, 4.0], "float"),
    (True, "bool"),
    ([True], "bool"),
    (None, "None"),
    ("4", "str"),
    (math.nan, "float"),
]

CAPS_MIB = [
    (-0.5, "negative"),
    ([], "empty"),
    (math.nan, "not finite"),
    ([25, math.inf], "not finite"),
    (True, "bool"),
    (None, "None"),
    ("25", "str"),
]

NAMES = [
    ([], "empty"),
    ([[]], "[]"),
    (["a", "b"], "'a'"),
    ([["a", ""]], "''"),
    ([["a", 3]], "3"),
    ([["a"], ["b", "a"]], "twice"),
    (None, "None"),
    ("abc", "str"),
]
