"""Loading apps: names, neighbours, and functions that travel to workers by value."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from headrace.cli.apps import AppError, load_job, load_module, split_app

NAMES = ("app", "neighbour", "json")
ADDER = """
import neighbour

BASE = 40

class Adder:
    def __call__(self, n):
        return neighbour.shift(n + BASE)
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Loading changes the process; the command does it once and ends."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    yield
    for name in [*NAMES, *(f"headrace_app_{name}" for name in NAMES)]:
        if name != "json":
            sys.modules.pop(name, None)


def test_a_file_and_a_name(app):
    path = app()
    assert split_app(str(path)) == (path, None)
    assert split_app(f"{path}:job") == (path, "job")
    with pytest.raises(typer.BadParameter, match="no file"):
        split_app(f"{path}x:job")


def test_one_job_under_two_names_is_one_job(app):
    path = app("import headrace as hr\njob = alias = hr.Job('x')\n")
    assert load_job(str(path)).name == "x"


def test_a_file_named_like_a_loaded_module_hides_nothing(app):
    import json

    module = load_module(app("import headrace as hr\njob = hr.Job('x')\n", name="json.py"))
    assert module.__name__ == "headrace_app_json"
    assert sys.modules["json"] is json


def test_errors_of_the_app_keep_their_cause(app):
    with pytest.raises(AppError, match=r"ZeroDivisionError: division by zero \(line 2\)") as caught:
        load_module(app("import headrace\n1 / 0\n"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_functions_travel_by_value(app, tmp_path):
    """A process that can import neither the app nor its neighbour calls the app's function."""
    app("def shift(n):\n    return n + 1\n", name="dir/neighbour.py")
    app(ADDER, name="dir/app.py")
    module = load_module(tmp_path / "dir" / "app.py")

    from pyspark import cloudpickle

    (tmp_path / "pickled").write_bytes(cloudpickle.dumps(module.Adder()))
    script = "import pickle, pathlib; print(pickle.loads(pathlib.Path('pickled').read_bytes())(1))"
    called = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": ""}
    )
    assert called.stdout == "42\n", called.stderr


def test_workers_can_import_neighbours_too(app, monkeypatch):
    import os

    path = app("import headrace\n")
    load_module(path)
    assert os.environ["PYTHONPATH"] == str(path.parent)
    assert sys.path[0] == str(path.parent)


def test_relative_paths_work(app, monkeypatch):
    path = app()
    monkeypatch.chdir(path.parent)
    assert load_job("app.py").name == "small"
    assert Path(sys.modules["app"].__file__ or "") == path
