"""What holds for all tests."""

import os

import pytest
from hypothesis import HealthCheck, settings

# Tests share the machine with each other: how long an example takes says nothing of the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

# Threads of OpenMP spin while they wait for each other, and other tests have the cores: trees that LightGBM
# grows in a second took twenty. It reads this when it is loaded, in the commands that tests start, too.
os.environ.setdefault("OMP_THREAD_LIMIT", "1")

SHARING = ("gateways/test_vllm.py", "gateways/test_litellm_proxy.py", "pipeline/", "models/")
"""Tests that share a server which takes a minute to start, or a backtest or a forecaster of the session."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let those begin: a worker that has nothing left takes tests off the end, so it never splits them."""

    def place(item: pytest.Item) -> int:
        under = item.nodeid.partition("::")[0]
        found = (at for at, name in enumerate(SHARING) if f"/{name}" in under)
        return next(found, len(SHARING))

    items.sort(key=place)
