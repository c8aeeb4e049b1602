"""Hooks and fixtures for every test: the worker pool's end, hypothesis' profile, the shared folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support import pool

settings.register_profile("gradweave", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gradweave")

_SHARED_DIR = Path(__file__).resolve().parents[2] / "shared"


def pytest_sessionfinish() -> None:
    """Leave no worker behind."""
    pool.shutdown()


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data next to the repository; tests that need it skip where it does not exist."""
    if not _SHARED_DIR.is_dir():
        pytest.skip("needs the folder ../shared next to the repository, which is not here")
    return _SHARED_DIR
