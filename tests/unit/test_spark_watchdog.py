"""A worker that hangs says where; one that works, or rests, says nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import time
from headrace.spark.watchdog import Watchdog
def hanging():
    time.sleep(5)
dog = Watchdog(after_s=3.0, every_s=0.1)
dog.beat()
{then}
"""


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("hanging()", True),
        ("dog.rest(); hanging()", False),
        ("[(time.sleep(0.1), dog.beat()) for _ in range(40)]", False),
    ],
)
def test_stacks_are_told_of_a_worker_that_hangs(then: str, said: bool) -> None:
    command = [sys.executable, "-c", _SCRIPT.format(then=then)]
    heard = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stderr
    assert ("in hanging" in heard) == said, heard
