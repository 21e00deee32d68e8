"""``headrace doctor`` without Spark; with it, see ``test_cli_spark``."""

from __future__ import annotations

import pytest

from headrace.cli.checks import Problem, allows
from headrace.cli.doctor import examine

QUICK = ["Python", "packages", "Java", "memory", "cores", "disk", "loopback ports", "control channel"]


def test_a_sound_machine(headrace):
    done = headrace("doctor", "--quick", "--json")
    assert done.code == 0, done.err
    assert [check["name"] for check in done.answer["checks"]] == QUICK
    assert all(check["ok"] and check["found"] for check in done.answer["checks"])
    assert "pyspark 4.3" in done.err
    assert "all is well" in done.err


def test_each_failure_comes_with_its_fix(headrace):
    done = headrace("doctor", "--json", JAVA_HOME="/nonexistent")
    assert done.code == 1
    failed = [check for check in done.answer["checks"] if not check["ok"]]
    assert [check["name"] for check in failed] == ["Java"]
    assert "JAVA_HOME is /nonexistent" in failed[0]["found"]
    assert "install OpenJDK" in failed[0]["fix"]
    assert "fix: install OpenJDK" in done.err
    assert "1 of 8 checks failed" in done.err


def test_a_check_that_crashes_is_a_finding():
    def crash() -> str:
        raise ValueError("no idea")

    def known() -> str:
        raise Problem("too small", "make it larger")

    assert examine("x", crash).found == "ValueError: no idea"
    finding = examine("x", known)
    assert (finding.ok, finding.found, finding.fix) == (False, "too small", "make it larger")


@pytest.mark.parametrize(
    ("bounds", "version", "allowed"),
    [(">=2.2,<3", "2.2", True), (">=2.2,<3", "3.0.1", False), ("==4.3.*", "4.3.7", True), ("==4.3.*", "4.4.0", False)],
)
def test_version_bounds(bounds, version, allowed):
    assert allows(bounds, version) is allowed
