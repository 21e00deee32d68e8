"""The loop around the machine: whatever breaks, the query is stopped, and the run ends with what happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from driven import counting, opened
from durable import MemoryStorage

from headrace.driver.driverloop import DriverLoop
from headrace.driver.hands import Hands
from headrace.driver.journal import Journal
from headrace.driver.protocol.events import Finish, QueryEnded, StopAsked
from headrace.driver.protocol.machine import Machine
from headrace.errors import ConfigError, RunFailedError
from headrace.runtime.messages import Hello, ToWorker

BROKEN = ZeroDivisionError("a fault of ours")


class NoQueries:
    """Queries that do nothing, and note what they are asked to do; ``failing`` raise."""

    def __init__(self, *failing: str) -> None:
        self.calls: list[str] = []
        self._failing = failing

    def _note(self, what: str) -> None:
        self.calls.append(what)
        if what in self._failing:
            raise BROKEN

    def start(self, query: int) -> None:
        self._note("start")

    def ended(self) -> QueryEnded | None:
        self._note("ended")
        return None

    def end_batch(self) -> None:
        self._note("end_batch")

    def stop(self, hung: tuple[Hello, ...]) -> None:
        self._note("stop")

    def answer(self, batch: int, run: bool) -> None:
        self._note("answer")

    def send(self, to: bytes, message: ToWorker) -> None:
        self._note("send")


class Stage:
    """A loop over queries that do nothing."""

    def __init__(self, *failing: str, each_turn: Callable[[float], None] = lambda now_s: None, **settings: Any) -> None:
        self.queries, self.journal, self.storage = NoQueries(*failing), Journal(), MemoryStorage()
        plan = counting(**settings)
        self.machine = Machine(plan, opened)
        self.loop = DriverLoop(
            self.machine, lambda post: Hands(plan, self.storage, post), self.queries, self.journal, each_turn=each_turn
        )


# an exception in the loop left the query running and the lock free
@pytest.mark.parametrize("where", ["turn", "machine", "ended"])
def test_a_fault_in_the_loop_stops_the_query_and_ends_the_run(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Any:
        if "start" in stage.queries.calls:
            raise BROKEN
        return real(*_) if where == "machine" else None

    real = Machine.on
    stage = Stage(*(["ended"] if where == "ended" else []), each_turn=breaks if where == "turn" else lambda now_s: None)
    if where == "machine":
        monkeypatch.setattr(stage.machine, "on", lambda event, now_s: breaks(stage.machine, event, now_s))
    finish = stage.loop.run()
    assert finish is not None and finish.state == "failed" and isinstance(finish.error, RunFailedError)
    assert str(finish.error) == "ZeroDivisionError: a fault of ours" and finish.error.__cause__ is BROKEN
    assert stage.queries.calls[-1] == "stop", "nothing runs when the run is over, and its lock is given back"


def test_an_error_of_ours_is_told_as_it_is() -> None:
    wrong = ConfigError("no such sink")

    def breaks(now_s: float) -> None:
        raise wrong

    assert Stage(each_turn=breaks).loop.run() == Finish("failed", wrong)


def test_a_query_that_cannot_be_started_is_stopped_and_tried_again() -> None:
    stage = Stage("start", give_up="0 s")
    finish = stage.loop.run()
    assert finish is not None and isinstance(finish.error, RunFailedError)
    calls = [call for call in stage.queries.calls if call != "ended"]
    assert calls[:2] == ["start", "stop"] and finish.error.__cause__ is not None


def test_a_query_that_cannot_be_stopped_does_not_keep_the_run() -> None:
    stage = Stage("stop")
    stage.loop.run(lambda: "start" in stage.queries.calls)
    stage.loop.post(StopAsked())
    assert stage.loop.run() == Finish("stopped")


def test_a_loop_can_be_left_and_entered_again() -> None:
    stage = Stage()
    assert stage.loop.run(lambda: stage.machine.generation > 0) is None
    assert stage.loop.run(lambda: stage.machine.query == 1) is None
    assert stage.storage.names("log") == ["log/0000000001"], "it is opened once"
    stage.loop.post(StopAsked())
    assert stage.loop.run() == Finish("stopped") and stage.queries.calls.count("start") == 1


def test_what_users_should_see_is_loud() -> None:
    stage = Stage("start", give_up="0 s")
    stage.loop.run()
    assert [event.what for event in stage.journal.events][-1] == "failed"
