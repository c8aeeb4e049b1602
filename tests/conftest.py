"""Hooks and fixtures for every test: the worker pool's end, hypothesis' profile, the shared folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Test modules are called tests.<package>.<module>, here and in the workers that import them by name.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tests.support
from tests.support import pool, worker

# `support` and `tests.support` must be one module: two would mean two pools of every size.
sys.modules.update({"support": tests.support, "support.pool": pool, "support.worker": worker})

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
