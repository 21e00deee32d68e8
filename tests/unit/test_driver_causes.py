"""Why a query stopped: the cause among what workers told before they died and what Spark says."""

from __future__ import annotations

import pytest

from headrace.driver.failures import translated, understand
from headrace.errors import ChannelError, CorruptionError, ProtocolError, RunFailedError, UserCodeError
from headrace.runtime.messages import Failed


def test_reports_tell_the_cause_from_its_consequences() -> None:
    secondary = Failed.of(ProtocolError("input ended"), 1, (2, 0))
    lost = Failed.of(ChannelError("no plan"), 1, (1, 0))
    user = Failed.of(UserCodeError("step", "record", "line", "cause"), 1, (1, 3))
    other = Failed.of(ValueError("boom"), 1, (0, 1))
    failure = understand([secondary, lost, other, user], RuntimeError("java"))
    assert failure.final and failure.error.step == "step" and isinstance(failure.error.__cause__, RuntimeError)  # type: ignore[attr-defined]
    failure = understand([secondary, other, lost], None)
    assert not failure.final and failure.summary == "ValueError: boom (stage 0, subtask 1)"
    assert understand([Failed.of(CorruptionError("input ended"), 1, (2, 0))], None).final
    assert not understand([secondary], None).final
    assert understand([secondary], None).summary == "input ended (stage 2, subtask 0)"
    assert isinstance(understand([secondary], None).error, ProtocolError)
    own = understand([Failed.of(ProtocolError("5 not consumed"), 1, None)], None)
    assert own.summary == "5 not consumed", "what the driver found itself has no place"
    assert understand([], None).summary == "the query ended without saying why"
    spark = Exception("Job aborted\n  at x.y\njava.lang.OutOfMemoryError: heap\n\t... 3 more\nexecutor 2 lost\n")
    assert understand([], spark).summary == "java.lang.OutOfMemoryError: heap" and not understand([], spark).final
    assert understand([], Exception("[CONCURRENT_STREAM_LOG_UPDATE] Error")).final
    assert understand([], CorruptionError("block x")).final


@pytest.mark.parametrize("error", ["annotations", "Exception", "UserCodeError", "no such", ""])
def test_a_failure_of_no_known_class_is_still_told(error: str) -> None:
    failure = understand([Failed(1, (0, 1), error, "boom", None)], None)
    assert type(failure.error) is RunFailedError and failure.summary == "boom (stage 0, subtask 1)"


def test_what_stops_the_driver_is_one_of_our_errors() -> None:
    ours, other = ProtocolError("5 not consumed"), KeyError("slice")
    assert translated(ours) is ours
    assert str(translated(other)) == "KeyError: 'slice'" and translated(other).__cause__ is other
    gone = translated(ConnectionRefusedError("[Errno 111]"))
    assert isinstance(gone, RunFailedError) and "start the job again to go on from the last cut" in str(gone)


# "restart: Current State: ACTIVE" was all that the journal said when an executor's slots were missing
def test_sparks_class_of_an_error_is_told_although_no_line_says_exception() -> None:
    said = "\n".join(
        [
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [CONCURRENT_SCHEDULER_INSUFFICIENT_SLOT] "
            "The minimum number of free slots required in the cluster is 4, however, the cluster only has 0. SQLSTATE: XXKST",
            "=== Streaming Query ===",
            "Identifier: [id = 1, runId = 2]",
            "Current State: ACTIVE",
        ]
    )
    summary = understand([], RuntimeError(said)).summary
    assert "only has 0" in summary and "ACTIVE" not in summary
