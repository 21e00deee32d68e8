"""The end of a run waits for sinks to show their last results, and says so when they do not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driven import Driven, counting

from headrace.driver import hands, publishing
from headrace.driver.hands import Deeds
from headrace.driver.protocol.events import Finish, Say, Settle, Settled, StopAsked
from headrace.state.durable.storage import LocalStorage

AWAY = "the disk is away"


def ending() -> Driven:
    """A run whose last cut is logged and published, and whose sinks have been asked to settle."""
    driven = Driven(held=[Settle]).run()
    driven.tell(StopAsked())
    driven.describe_all()
    driven.later(0.2)
    assert driven.all(Settle) == [Settle()] and driven.finish is None
    return driven


def loud(driven: Driven) -> list[str]:
    return [say.detail for say in driven.all(Say) if say.loud]


def test_a_run_ends_when_its_sinks_have_shown_everything() -> None:
    driven = ending()
    assert driven.later(5.0) == [], "asked once, and waited for"
    driven.tell(Settled())
    assert driven.finish is not None and driven.finish.state == "stopped" and loud(driven) == []


def test_a_sink_that_fails_is_asked_again_and_told_of_once() -> None:
    driven = ending()
    for asked in range(1, 4):
        assert len(driven.all(Settle)) == asked
        driven.tell(Settled(AWAY))
        driven.later(1.0)
    assert loud(driven) == [f"a sink cannot show its last results yet, trying on: {AWAY}"] and driven.finish is None
    driven.tell(Settled())
    assert driven.finish is not None and len(loud(driven)) == 1


def test_a_sink_that_never_does_is_left_to_the_next_start_and_that_is_said() -> None:
    driven = ending()
    while driven.finish is None and driven.now_s < 200.0:
        driven.tell(Settled(AWAY))
        driven.later(1.0)
    assert 130.0 < driven.now_s < 140.0
    assert driven.finish == Finish("stopped")
    assert loud(driven)[1:] == [f"a sink has not shown its last results, the next start will see to it: {AWAY}"]


def test_hands_answer_whether_sinks_have_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settled: list[str] = []

    def settle(name: str, *, fails: bool) -> Any:
        def now() -> None:
            if fails:
                raise OSError(AWAY)
            settled.append(name)

        return SimpleNamespace(settle=now)

    sinks = {name: settle(name, fails=name == "b") for name in "abc"}
    monkeypatch.setattr(publishing, "sinks_of", lambda plan: sinks)
    deeds = Deeds(counting(), LocalStorage(tmp_path))
    assert hands.pool_of(Settle()) == "publish", "after what is still to be published"
    answer = deeds.perform(Settle())
    assert isinstance(answer, Settled) and AWAY in str(answer.trouble) and settled == ["a", "c"]
    sinks["b"] = settle("b", fails=False)
    assert deeds.perform(Settle()) == Settled()
