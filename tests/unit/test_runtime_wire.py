"""What a run puts on the wire: order, counts and watermarks of every buffer; slow receivers and full queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import reference as ref
from workflows import MS, out

import headrace as hr
from headrace.errors import ProtocolError
from headrace.graph.windowing import FOREVER_US, IDLE_US, NEVER_US
from headrace.runtime.operators.progress import Progress
from headrace.runtime.wire.frames import Frame, Kind, decode
from headrace.runtime.wire.inbox import End, Inbox, Row, read_into
from headrace.runtime.wire.marks import read_mark
from headrace.testing import LocalRun, run_local, scripted
from headrace.testing.threads import Pipe

PARTS = [[{"k": f"k{i % 11}", "v": i, "t": 3 * i - (i % 5)} for i in range(p, 200, 2)] for p in range(2)]


def job() -> hr.Job:
    made = hr.Job("job")
    s = made.source("s", scripted(*PARTS), event_time="t", lateness="5 ms")
    counted = s.key_by("k").window(hr.tumbling("50 ms")).reduce(name="r", n=hr.count())
    counted.key_by("n").window(hr.sliding("200 ms", every="100 ms")).reduce(name="q", n2=hr.count()).sink("out", out())
    s.key_by("k").process(lambda r, state, out: out({"k": r["k"]}), name="p").sink("p-out", out())
    return made


def expected() -> dict[str, list[Any]]:
    seen = ref.enter(PARTS, 5 * MS)
    first = ref.time_windows(seen, ["k"], 50 * MS, 50 * MS, {"n": ref.count()})
    second = ref.time_windows(ref.emitted(first), ["n"], 200 * MS, 100 * MS, {"n2": ref.count()})
    return {"out": ref.bag(second), "p-out": ref.bag([{"k": r["k"]} for part in PARTS for r in part])}


@pytest.mark.parametrize("mode", ["realtime", "microbatch", "batch"])
@pytest.mark.parametrize(
    "options", [{"flush": "0 ms", "poll_rows": 7}, {"flush_bytes": 1, "poll_rows": 3}, {"flush": "1 s"}]
)
def test_every_channel_is_in_order_and_accounted_for(
    mode: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[tuple[int, Frame]] = []
    put = Pipe.put

    def watched(self: Pipe, row: pa.RecordBatch) -> None:
        rows.extend((id(self), frame) for frame in decode(row.column("payload")[0].as_py()))
        put(self, row)

    monkeypatch.setattr(Pipe, "put", watched)
    got = run_local(job(), mode=mode, parallelism=2, **options)
    assert {sink: ref.bag(found) for sink, found in got.items()} == expected()
    channels: dict[tuple[int, int, int], list[Frame]] = {}
    pipes: dict[tuple[int, int], list[Frame]] = {}
    for receiver, frame in rows:
        pipes.setdefault((receiver, frame.sender), []).append(frame)
        if frame.kind is not Kind.CUT:
            channels.setdefault((receiver, frame.edge, frame.sender), []).append(frame)
    for frames in pipes.values():
        marks = [read_mark(frame) for frame in frames if frame.kind is Kind.CUT]
        assert [mark.token.cut for mark in marks] == list(range(1, len(marks) + 1))
        assert [mark.end for mark in marks] == [*[False] * (len(marks) - 1), True] and frames[-1].kind is Kind.CUT
    assert len(channels) > 4 and len({edge for _, edge, _ in channels}) == 3
    for frames in channels.values():
        data = [frame for frame in frames if frame.kind < Kind.WATERMARK]
        assert [frame.sequence for frame in data] == list(range(1, len(data) + 1))
        watermarks = [frame.watermark_us for frame in frames if frame.kind is Kind.WATERMARK]
        assert watermarks == sorted({*watermarks}), "each watermark once, each higher than the one before"
        sent = 0
        for frame in frames:
            assert frame.kind < Kind.WATERMARK or frame.sequence == sent
            sent = frame.sequence
            if frame.kind < Kind.WATERMARK:
                assert frame.counts is not None and int(frame.counts.sum()) == frame.items > 0
                assert frame.opened_us <= frame.shipped_us and frame.born_us <= frame.shipped_us


# cmr fact 4: one worker slowed down: others go on; answers unchanged
@pytest.mark.parametrize("slow", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_slow_subtask_changes_no_answer(slow: tuple[int, int], tmp_path: Path) -> None:
    pause: Callable[[int, int], float] = lambda stage, index: 0.01 if (stage, index) == slow else 0.0  # noqa: E731
    run = LocalRun(job(), tmp_path, pause=pause, report="5 ms", flush="1 ms", poll_rows=10)
    run.run(seconds=5)
    got = {sink: ref.bag(run.rows(sink)) for sink in ("out", "p-out")}
    run.close()
    assert got == expected()


@pytest.mark.parametrize(
    ("watermarks", "reached_us", "idle"),
    [
        ([5, IDLE_US, 7], 5, False),
        ([IDLE_US, IDLE_US], NEVER_US, True),
        ([NEVER_US, 5], NEVER_US, False),
        ([FOREVER_US, 3], 3, False),
        ([FOREVER_US, IDLE_US], NEVER_US, True),
        ([FOREVER_US, FOREVER_US], FOREVER_US, False),
        ([], NEVER_US, False),
    ],
)
def test_inputs_that_are_idle_or_have_ended_hold_nobody_back(
    watermarks: list[int], reached_us: int, idle: bool
) -> None:
    progress = Progress(range(len(watermarks)))
    for source, watermark_us in enumerate(watermarks):
        progress.hear(source, watermark_us)
    assert (progress.reached_us, progress.idle) == (reached_us, idle)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_in_whatever_order_inputs_fall_silent_time_has_come_equally_far(order: tuple[int, ...]) -> None:
    progress = Progress(range(3))
    for source, watermark_us in enumerate((14, 19, FOREVER_US)):
        progress.hear(source, watermark_us)
    for source in order:
        if source < 2:
            progress.hear(source, IDLE_US)
    assert progress.idle and progress.reached_us == 19
    progress.hear(0, 14)
    assert not progress.idle and progress.reached_us == 14, "one that speaks again holds back what it may bring"


def test_a_full_inbox_makes_its_reader_wait() -> None:
    payloads = [bytes([i]) * 10 for i in range(20)]
    inbox = Inbox(limit_bytes=25)
    schema = pa.schema([("route", pa.int32()), ("payload", pa.binary())])
    batches = [pa.record_batch([pa.array([0], pa.int32()), pa.array([p])], schema=schema) for p in payloads]
    thread = read_into(inbox, iter([*batches, pa.record_batch({"tick": [1]})]))
    held: list[Row] = []
    deadline = time.monotonic() + 5
    while len(held) < 2 and time.monotonic() < deadline:
        item = inbox.get(0.01)
        held += [item] if item is not None else []
    assert inbox.get(0.05) is None, "two rows of ten bytes fill it: the third has to wait"
    seen = [bytes(row.payload) for row in held]
    for row in held:
        inbox.done(row)
    while not isinstance(item := inbox.get(5), End):
        assert isinstance(item, Row)
        seen.append(bytes(item.payload))
        inbox.done(item)
    thread.join(5)
    assert seen == payloads and item.error is None


def test_a_row_larger_than_the_inbox_still_passes() -> None:
    inbox = Inbox(limit_bytes=1)
    inbox.put_row(memoryview(b"large"))
    row = inbox.get(0)
    assert bytes(row.payload) == b"large" and inbox.get(0) is None


def test_broken_input_is_told(tmp_path: Path) -> None:
    def broken() -> Any:
        raise ConnectionResetError("executor lost")
        yield

    inbox = Inbox(100)
    read_into(inbox, broken()).join(5)
    end = inbox.get(0)
    assert isinstance(end, End) and isinstance(end.error, ConnectionResetError)


def test_a_subtask_that_gets_a_strangers_buffer_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = Pipe.put
    schema = pa.schema([("route", pa.int32()), ("payload", pa.binary())])
    stray = pa.record_batch(
        [pa.array([0], pa.int32()), pa.array([Frame(Kind.WATERMARK, 999, 0, 0).encode()])], schema=schema
    )

    def misrouted(self: Pipe, row: pa.RecordBatch) -> None:
        put(self, stray)
        put(self, row)

    monkeypatch.setattr(Pipe, "put", misrouted)
    run = LocalRun(job(), tmp_path, mode="batch")
    with pytest.raises(ProtocolError, match="stage 1 received a buffer of edge 999, which does not end here"):
        run.batch()
    run.close()
    assert threading.active_count() < 20
