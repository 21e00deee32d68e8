"""The audit: what must fit together in the descriptions of a cut."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.driver.protocol.audit import audit
from headrace.errors import ProtocolError
from headrace.runtime.plan import Description
from headrace.tokens import Token

CUT = Token(1, 0, 3)


def description(stage: int, index: int, **more: Any) -> Description:
    nothing = Description(
        stage, index, CUT, (), {}, {}, {}, {}, {}, (), {}, exhausted=False, aligned_ms=1.0, worked_ms=1.0, written_bytes=0,
        reached={},
    )  # fmt: skip
    return replace(nothing, **more)


def fitting() -> list[Description]:
    """Two senders, two receivers; edge 0 is keyed, with three slices, and combined; edge 1 is not."""
    return [
        description(0, 0, sent={0: {0: [2, 0, 1]}, 1: {0: [4]}}, put={0: {0: 30}, 1: {0: 4}}),
        description(0, 1, sent={0: {1: [0, 0, 5]}, 1: {1: [0]}}, put={0: {1: 5}, 1: {1: 0}}),
        description(
            1, 0, consumed={0: {0: [2, 0, 0], 1: [0, 0, 0]}, 1: {0: [3]}}, stood={0: {0: 20}, 1: {0: 3}},
            watermarks={0: 70, 1: -5},
        ),
        description(
            1, 1, consumed={0: {0: [0, 0, 1], 1: [0, 0, 5]}, 1: {0: [1]}}, stood={0: {0: 10, 1: 5}, 1: {0: 1}},
            watermarks={0: 70, 1: -5},
        ),
    ]  # fmt: skip


def changed(at: int, **more: Any) -> list[Description]:
    descriptions = fitting()
    descriptions[at] = replace(descriptions[at], **more)
    return descriptions


def test_what_fits_together_passes_in_any_order() -> None:
    audit(fitting())
    audit(fitting()[::-1])
    audit([])
    audit([description(0, 0)])


# chronostream fact 20: sent = consumed per sender, edge and slice before each entry of the log
@pytest.mark.parametrize(
    ("descriptions", "says"),
    [
        (changed(3, consumed={0: {0: [0, 0, 1], 1: [0, 0, 3]}, 1: {0: [1]}}), "edge 0, sender 1: 5 items sent, 2 not consumed"),
        (changed(2, consumed={}), "edge 0, sender 0: 3 items sent, 2 not consumed"),
        (changed(1, sent={}), "edge 0, sender 1: 5 items were consumed that it did not send"),
        (changed(2, consumed={0: {0: [2, 0, 1]}, 1: {0: [3]}}), "edge 0, sender 0: 1 items were consumed that it did not"),
        (
            changed(2, consumed={0: {0: [1, 1, 0]}, 1: {0: [3]}}),
            "edge 0, sender 0: 3 items sent, consumed in other slices than those they were sent to",
        ),
        (changed(3, consumed={0: {0: [0, 0, 1], 1: [0, 0, 5]}, 7: {0: [1]}}), "edge 1, sender 0: 4 items sent, 1 not consumed"),
    ],
)  # fmt: skip
def test_items_that_were_lost_doubled_or_led_astray_are_seen(descriptions: list[Description], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        audit(descriptions)


# rule 4.1: a buffer that stays open at the cut; its items were never sent, so only what was put in shows it
def test_a_buffer_that_was_not_flushed_is_seen() -> None:
    with pytest.raises(ProtocolError, match="edge 0, sender 0: 31 records were put into buffers, but 30 taken out"):
        audit(changed(0, put={0: {0: 31}, 1: {0: 4}}))
    with pytest.raises(ProtocolError, match="edge 1, sender 0: 4 records were put into buffers, but 3 taken out"):
        audit(changed(3, stood={0: {0: 10, 1: 5}}))
    with pytest.raises(ProtocolError, match="edge 5, sender 1: 0 records were put into buffers, but 2 taken out"):
        audit(changed(2, stood={0: {0: 20}, 1: {0: 3}, 5: {1: 2}}))


# rule 3 and 4.5: who is aligned with other marks than its neighbour has come to another time
@pytest.mark.parametrize(
    ("watermarks", "says"),
    [
        ({0: 70, 1: -4}, "stage 1, edge 1: at the cut subtask 1 had come to -4 µs, subtask 0 to -5 µs"),
        ({0: 70}, "stage 1, edge 1: at the cut subtask 1 had come to no time yet, subtask 0 to -5 µs"),
        ({0: 70, 1: -5, 2: 0}, "stage 1, edge 2: at the cut subtask 1 had come to 0 µs, subtask 0 to no time yet"),
    ],
)
def test_subtasks_of_a_stage_that_are_not_at_the_same_time_are_seen(watermarks: dict[int, int], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        audit(changed(3, watermarks=watermarks))


def test_stages_may_be_at_different_times() -> None:
    audit([*fitting(), description(2, 0, watermarks={0: 3}), description(2, 1, watermarks={0: 3})])


def test_descriptions_of_several_cuts_are_not_mixed() -> None:
    other = Token(1, 1, 3)
    with pytest.raises(ProtocolError, match=f"descriptions of several cuts together: {CUT}, {other}"):
        audit(changed(1, token=other))
