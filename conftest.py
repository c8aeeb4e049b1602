"""Doctests of the sources run in one process: each starts without the strategies, groups and wrappers of the one before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _fresh_registries_for_doctests(request: pytest.FixtureRequest) -> Iterator[None]:
    is_doctest = isinstance(request.node, pytest.DoctestItem)
    if is_doctest:
        from gradweave.world import reset_registries

        reset_registries()
    yield
