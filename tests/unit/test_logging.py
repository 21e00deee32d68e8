"""The log, as a program that uses Headrace as a library expects it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import headrace as hr
from headrace.launch import _show_log

LOG = logging.getLogger("headrace")


@contextmanager
def bare() -> Iterator[None]:
    """No handler but those that Headrace has: pytest's own are put aside."""
    root, before = logging.getLogger(), [*LOG.handlers]
    kept, root.handlers[:] = [*root.handlers], []
    try:
        yield
    finally:
        root.handlers[:], LOG.handlers[:] = kept, before
        LOG.setLevel(logging.NOTSET)


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    for level in ("debug", "info", "warning", "error"):
        getattr(logging.getLogger("headrace.journal"), level)(level)
    return [line.rpartition(" ")[2] for line in capsys.readouterr().err.splitlines()]


def test_importing_it_shows_nothing_and_installs_nothing() -> None:
    code = "import logging, headrace; logging.getLogger('headrace.journal').error('x'); print(logging.getLogger().handlers)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize(
    ("level", "expected"),
    [("WARNING", ["warning", "error"]), ("INFO", ["info", "warning", "error"]), ("ERROR", ["error"]), (None, [])],
)
def test_a_run_shows_what_it_is_asked_to(capsys: pytest.CaptureFixture[str], level: str, expected: list[str]) -> None:
    with bare():
        for _ in range(2):  # a second run adds nothing
            _show_log(level)
        assert shown(capsys) == expected


def test_the_last_run_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with bare():
        _show_log("DEBUG")
        _show_log("ERROR")
        assert shown(capsys) == ["error"]
        _show_log(None)
        assert shown(capsys) == [] and LOG.level == logging.NOTSET


@pytest.mark.parametrize("name", ["", "headrace"])
def test_a_program_that_has_set_up_logging_is_left_alone(capsys: pytest.CaptureFixture[str], name: str) -> None:
    with bare():
        logging.getLogger(name).addHandler(logging.StreamHandler())
        _show_log("DEBUG")
        assert shown(capsys) == ["warning", "error"], "as its own level says, and once"


def test_a_level_that_the_program_has_chosen_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with bare():
        LOG.setLevel(logging.ERROR)
        _show_log("WARNING")
        assert shown(capsys) == ["error"]


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(hr.ConfigError, match="log='LOUD' is not one of DEBUG, INFO, WARNING, ERROR, or None"):
        hr.start(hr.Job("job"), log="LOUD")
