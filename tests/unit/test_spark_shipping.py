"""What workers are sent: what cannot be is refused before Spark starts, by step and variable."""

from __future__ import annotations

import functools
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.spark.shipping import ship_by_value
from headrace.testing import scripted

LOCK = threading.Lock()
Row = dict[str, Any]


class Store:
    """A connection, as users keep them: in an attribute."""

    def __init__(self) -> None:
        self.settings = {"guard": threading.RLock()}

    def save(self, row: Row) -> Row:
        return {**row, "guarded": bool(self.settings)}


def guarded(row: Row) -> Row:
    with LOCK:
        return row


def check(fn: Any) -> None:
    job = hr.Job("job")
    job.source("s", scripted([{"n": 1}])).map(fn, name="save", returns={"n": "int64"}).sink("out", hr.rows())
    ship_by_value(job.graph())


def with_variable(thing: Any) -> Callable[[Row], Row]:
    def save(row: Row) -> Row:
        return {**row, "used": thing is not None}

    return save


def test_locks_sockets_and_open_files_are_refused_by_step_and_variable(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("one\n")
    with socket.socket() as connection, (tmp_path / "names.txt").open() as file:
        for thing, kind in (
            (threading.Lock(), "_thread.lock"),
            (connection, "socket.socket"),
            (file, "_io.TextIOWrapper"),
            (sys._getframe(), "frame"),
        ):
            words = (
                f"step 'save': its function uses 'thing', a {kind}, which cannot be sent to workers .*make it inside"
            )
            with pytest.raises(hr.GraphError, match=words):
                check(with_variable(thing))


def default(row: Row, *, guard: Any = LOCK) -> Row:
    return row


@pytest.mark.parametrize(
    ("fn", "path"),
    [
        (guarded, "LOCK"),
        (default, "guard"),
        (Store().save, "settings.guard"),
        (functools.partial(lambda lock, row: row, LOCK), "argument 1"),
        (with_variable([{"deep": with_variable(LOCK)}]), "thing.deep.thing"),
        (lambda row: {**row, "all": [guarded(row) for _ in range(2)]}, "guarded.LOCK"),
    ],
)
def test_the_variable_is_found_wherever_it_is(fn: Any, path: str) -> None:
    with pytest.raises(hr.GraphError, match=f"its function uses '{path}', a _thread.R?[Ll]ock"):
        check(fn)


def test_every_kind_of_step_is_looked_at() -> None:
    bad = with_variable(LOCK)

    def refused(build: Callable[[hr.Job, hr.Stream], object], words: str) -> None:
        job = hr.Job("job")
        build(job, job.source("s", scripted([{"n": 1}])))
        with pytest.raises(hr.GraphError, match=f"{words} uses '(fn.)?thing', a _thread.lock"):
            ship_by_value(job.graph(need_sink=False))

    keyed = {"state": {}, "name": "p"}
    own = hr.reducer(init=lambda: 0, update=lambda state, row: state, finalize=bad)
    refused(lambda job, s: s.key_by("n").process(bad, **keyed), "step 'p': its function")  # type: ignore[arg-type]
    refused(lambda job, s: s.key_by("n").process(print, on_timer=bad, **keyed), "step 'p': its on_timer")  # type: ignore[arg-type]
    refused(lambda job, s: s.key_by("n").reduce(name="r", own=own), "step 'r': finalize= of own")
    refused(lambda job, s: job.source("g", hr.generate(bad)), "step 'g': its function")  # type: ignore[arg-type]
    refused(lambda job, s: s.sink("out", hr.callback(bad)), "step 'out': its function")


def test_what_stays_in_the_driver_may_have_anything() -> None:
    def rates() -> list[Row]:
        with LOCK:
            return [{"n": 1}]

    job = hr.Job("job")
    read = job.source("s", scripted([{"n": 1}])).lookup(hr.table(rates, key="n"))
    read.sink("out", hr.callback(lambda rows, version: LOCK.locked(), when="on_commit"))
    ship_by_value(job.graph())


def test_what_can_be_sent_is_not_refused() -> None:
    check(with_variable({"a": [1, 2.5, "x"], "b": Path("x"), "c": print, "d": Store}))
    check(functools.partial(with_variable(None)))
