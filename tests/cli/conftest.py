"""The command, in this process or in one of its own, and what its answers look like."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from textwrap import dedent
from typing import Any

import psutil
import pytest

from headrace.cli.main import main

COMMAND = Path(sys.executable).with_name("headrace")
EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 500.0
"""On a machine that is busy otherwise nothing hangs, all is slow."""

APP = """
    import headrace as hr

    def double(record):
        return {"key": record["n"] % 3, "n": 2 * record["n"], "at": record["n"] * 1000}

    job = hr.Job("small")
    numbers = job.source("numbers", hr.generate(lambda n: {"n": n}, total=3000, rate="3000/s"))
    doubled = numbers.map(double, name="double")
    doubled.key_by("key").window(hr.whole_input()).reduce(name="sums", n=hr.count(), total=hr.sum("n")).sink(
        "out", hr.jsonl("out")
    )
"""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON object in the last line."""
        answer = json.loads(self.out.strip().splitlines()[-1])
        assert isinstance(answer, dict)
        return answer


Headrace = Callable[..., Ended]


@pytest.fixture
def headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """``headrace(*arguments)`` runs the command in this process and undoes what loading an app changes.

    Its directory is ``tmp_path``; keyword arguments are environment variables.
    """

    def run(*arguments: str | Path, **environment: str) -> Ended:
        code, out, err = 0, StringIO(), StringIO()
        with monkeypatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.chdir(tmp_path)
            for name, value in {"PYTHONPATH": "", "COLUMNS": "200", **environment}.items():
                patch.setenv(name, value)
            patch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
            patch.setattr(sys, "path", list(sys.path))
            patch.setattr(sys, "dont_write_bytecode", True)  # an app may be written twice within a second
            try:
                main()
            except SystemExit as ended:
                code = int(ended.code or 0)
            _forget_modules(tmp_path, EXAMPLES)
        return Ended(code, out.getvalue(), err.getvalue())

    return run


def _forget_modules(*directories: Path) -> None:
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "")
        if any(path.is_relative_to(directory) for directory in directories):
            del sys.modules[name]


@pytest.fixture
def command(tmp_path: Path) -> Headrace:
    """``command(*arguments)`` runs the installed command in a process of its own, as ``headrace`` does in this one."""

    def run(*arguments: str | Path, **environment: str) -> Ended:
        done = subprocess.run(
            [COMMAND, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200", **environment},
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


class Running:
    """A command that was started; it and all it started are killed when the test is over."""

    def __init__(self, arguments: tuple[str, ...], directory: Path) -> None:
        self._said = directory / "said.txt"
        with self._said.open("w") as said:
            self.process = subprocess.Popen(
                [COMMAND, *arguments],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                start_new_session=True,
            )

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"the command ended early: {self._said.read_text()}"
            assert time.monotonic() < deadline_s, f"nothing came in time: {self._said.read_text()}"
            time.sleep(0.1)

    def end(self, number: signal.Signals) -> Ended:
        """Send a signal to the command alone, and wait for its end."""
        self.process.send_signal(number)
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return Ended(self.process.returncode, out, self._said.read_text())

    def kill(self) -> None:
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid:
                    process.kill()
            except (psutil.Error, ProcessLookupError):
                continue
        self.process.wait(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """``started(*arguments)`` starts the command in ``tmp_path`` and does not wait for it."""
    running: list[Running] = []

    def start(*arguments: str) -> Running:
        running.append(Running(arguments, tmp_path))
        return running[-1]

    yield start
    for one in running:
        one.kill()


@pytest.fixture
def app(tmp_path: Path) -> Callable[..., Path]:
    """``app(source)`` writes an ``app.py``, by default one with a small job."""

    def write(source: str = APP, name: str = "app.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return path

    return write


def rows_in(directory: Path) -> list[dict[str, Any]]:
    """The published rows of a JSON lines sink."""
    return [
        json.loads(line) for path in sorted(directory.glob("part-*.jsonl")) for line in path.read_text().splitlines()
    ]


@pytest.fixture
def published() -> Callable[[Path], list[dict[str, Any]]]:
    return rows_in


@pytest.fixture
def examples() -> Path:
    return EXAMPLES
