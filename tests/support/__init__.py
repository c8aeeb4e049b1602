"""What the tests share: a pool of worker processes, and when a test does not apply."""

from __future__ import annotations

import os

import pytest

needs_free_order = pytest.mark.skipif(
    os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL",
    reason="TORCH_DISTRIBUTED_DEBUG=DETAIL makes every collective wait for its peers, so none overlap",
)
