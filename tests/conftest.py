"""Hypothesis profiles: the default is the same examples in every run, ``explore`` looks for new ones."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]

settings.register_profile("steady", deadline=None, derandomize=True, database=None, suppress_health_check=_SLOW)
settings.register_profile("explore", deadline=None, database=None, print_blob=True, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("HEADRACE_HYPOTHESIS", "steady"))


# Java's second compiler pays for programs that run for minutes; here it takes half of the time.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "soak: random moments or seeds, of which ``make soak`` tries more")
