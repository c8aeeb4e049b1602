"""A world of one process for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gradweave.world as world


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A Gloo world of one, gone afterwards."""
    world.init("gloo")
    yield
    world.shutdown()
