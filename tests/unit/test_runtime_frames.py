"""What crosses between stages: frames whose damage is found, sequences whose gaps are found."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptionError, ProtocolError
from headrace.graph.stages import Edge
from headrace.graph.windowing import NEVER_US
from headrace.runtime.batch import Batch, concat, from_wire, to_wire
from headrace.runtime.operators.operator import Operator
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.frames import Frame, Kind, decode, external_row, read_ipc, sender_of
from headrace.runtime.wire.inbound import Inbound
from headrace.runtime.wire.marks import CUT_EDGE, CutMark, read_mark
from headrace.tokens import Token

FRAMES = st.builds(
    lambda kind, edge, sender, sequence, watermark, slices, body: Frame(
        kind, edge, sender, sequence, len(body), 1, 2, 3, watermark,
        np.array(slices, np.uint16), np.arange(len(slices), dtype=np.uint32), body, 4, watermark, sequence, len(body),
    ),
    st.sampled_from(Kind), st.integers(0, 65_535), st.integers(0, 65_535), st.integers(0, 2**32 - 1),
    st.integers(-(2**62), 2**62), st.lists(st.integers(0, 65_535), max_size=5), st.binary(max_size=40),
)  # fmt: skip


def fields(frame: Frame) -> tuple[object, ...]:
    slices = [] if frame.slices is None else frame.slices.tolist()
    counts = [] if frame.counts is None else frame.counts.tolist()
    return (frame.kind, frame.edge, frame.sender, frame.sequence, frame.items, frame.born_us, frame.opened_us,
            frame.shipped_us, frame.watermark_us, slices, counts, bytes(frame.body), frame.tagged_us,
            frame.waited_us, frame.settings, frame.stands)  # fmt: skip


@given(st.lists(FRAMES, max_size=4))
def test_round_trip(frames: list[Frame]) -> None:
    payload = b"".join(frame.encode() for frame in frames)
    assert [fields(f) for f in decode(memoryview(payload))] == [fields(f) for f in frames]


@given(FRAMES, st.data())
def test_any_damage_is_found(frame: Frame, data: st.DataObject) -> None:
    payload = bytearray(frame.encode())
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptionError, match="buffer between two stages"):
        list(decode(bytes(payload)))


@given(FRAMES, st.data())
def test_truncation_is_found(frame: Frame, data: st.DataObject) -> None:
    payload = frame.encode()
    with pytest.raises(CorruptionError, match="buffer between two stages"):
        list(decode(payload[: data.draw(st.integers(1, len(payload) - 1))]))


def test_an_empty_payload_has_no_frames() -> None:
    assert list(decode(b"")) == []


def test_records_that_spark_read_travel_with_their_schema() -> None:
    records = pa.record_batch({"a": [1, None], "b": ["x", "y"]})
    frame = next(decode(external_row(3, records)))
    assert frame.kind is Kind.EXTERNAL and frame.edge == 3 and read_ipc(frame.body).equals(records)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), min_size=1, max_size=8), st.booleans())
def test_batches_keep_times_and_watermarks_on_the_wire(rows: list[tuple[int, int]], late: bool) -> None:
    records = pa.record_batch({"v": [v for v, _ in rows]})
    times = np.array([t for _, t in rows])
    batch = Batch(records, times, 17, times + 3 if late else None)
    back = from_wire(to_wire(batch), records.schema, 17)
    assert back.records.equals(records) and back.times.tolist() == times.tolist()
    assert (back.late is None) == (not late) and (not late or back.late.tolist() == (times + 3).tolist())
    twice = concat([batch, back])
    assert twice.rows == 2 * len(rows) and twice.times.tolist() == [*times, *times]
    assert twice.take(np.array([0])).records.to_pylist() == [{"v": rows[0][0]}]


def inbound(senders: int) -> Inbound:
    edge = Edge(5, "from", "to", 0, 1, ("k",), keyed=True)
    operator = Operator("to")
    made = Inbound(edge, operator, pa.schema([]), None, 4, ChannelMeter(5, operator.meter, 1.0, Stamp()))
    made.begin(range(senders))
    return made


def data(sender: int, sequence: int, slice: int = 0, items: int = 1) -> Frame:
    return Frame(
        Kind.DATA, 5, sender, sequence, items, slices=np.array([slice], np.uint16),
        counts=np.array([items], np.uint32), stands=items,
    )  # fmt: skip


# chronostream fact 19: a sequence gap aborts; a duplicate is dropped
def test_a_duplicate_is_dropped_and_not_counted() -> None:
    edge = inbound(2)
    assert edge.accept(data(0, 1, slice=2, items=3)) and edge.accept(data(1, 1))
    assert not edge.accept(data(0, 1, slice=2, items=3))
    assert edge.accept(data(0, 2, slice=2, items=4))
    assert edge.take_counts() == ({0: [0, 0, 7, 0], 1: [1, 0, 0, 0]}, {0: 7, 1: 1})
    assert edge.take_counts() == ({}, {}), "counts are of one interval; sequences go on"
    assert not edge.accept(data(0, 2)) and edge.accept(data(0, 3))


@pytest.mark.parametrize("sequences", [{5: 2}, {5: 0}, {}])
def test_a_mark_behind_which_buffers_are_missing_aborts(sequences: dict[int, int]) -> None:
    edge = inbound(1)
    assert edge.accept(data(0, 1))
    with pytest.raises(ProtocolError, match="edge from → to: buffer . of sender 0 after 1: buffers are missing"):
        edge.marked(0, CutMark(Token(1, 0, 1), False, sequences, {}))
    edge.marked(0, CutMark(Token(1, 0, 1), False, {5: 1, 6: 9}, {}))


def test_a_marks_watermark_may_be_lower_or_none() -> None:
    edge = inbound(1)
    edge.accept(Frame(Kind.WATERMARK, 5, 0, 0, watermark_us=50))
    edge.follow(0, CutMark(Token(1, 0, 1), False, {}, {5: 20}))
    assert edge.lowest() == 20
    edge.follow(0, CutMark(Token(1, 0, 2), False, {}, {}))
    assert edge.lowest() == NEVER_US


def test_marks_travel_as_frames_and_what_is_none_is_refused() -> None:
    mark = CutMark(Token(3, 1, 7), True, {0: 4, 9: 0}, {9: -5})
    (frame,) = decode(mark.frame(2051).encode())
    assert (frame.kind, frame.edge, frame.sender) == (Kind.CUT, CUT_EDGE, 2051) and read_mark(frame) == mark
    assert sender_of(memoryview(mark.frame(2051).encode())) == 2051
    for body in (b"", b"\xc1", b"\x80", bytes(frame.body)[:-1], bytes(frame.body).replace(b"end", b"and")):
        with pytest.raises(CorruptionError, match="mark of a cut by sender 7 cannot be read"):
            read_mark(Frame(Kind.CUT, CUT_EDGE, 7, 0, body=body))


@pytest.mark.parametrize(
    "frame",
    [
        data(0, 3),
        Frame(Kind.WATERMARK, 5, 0, 2, watermark_us=9),
        Frame(Kind.WATERMARK, 5, 0, 0),
    ],
)
def test_a_gap_aborts(frame: Frame) -> None:
    edge = inbound(1)
    assert edge.accept(data(0, 1))
    with pytest.raises(ProtocolError, match="edge from → to: buffer .* of sender 0 after 1: buffers are missing"):
        edge.accept(frame)


# cmr fact 2: nothing closes before all senders have come so far; cmr fact 3: a watermark is in order with its data
def test_a_watermark_counts_when_all_senders_gave_it() -> None:
    edge = inbound(2)
    edge.accept(Frame(Kind.WATERMARK, 5, 0, 0, watermark_us=50))
    assert edge.lowest() < 0
    edge.accept(Frame(Kind.WATERMARK, 5, 1, 0, watermark_us=40))
    assert edge.lowest() == 40
    edge.accept(Frame(Kind.WATERMARK, 5, 1, 0, watermark_us=30))
    assert edge.lowest() == 40, "a watermark is never taken back"
    edge.accept(data(1, 1))
    with pytest.raises(ProtocolError):
        edge.accept(Frame(Kind.WATERMARK, 5, 1, 0, watermark_us=60))
