"""Sessions in fixed-size buffers: each comes out once and whole, whatever fits in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.bench.spilling.sessionize import SessionBound, SessionBuffers
from headrace.errors import StateError
from headrace.state.index.policies import FREQUENT, INC, ResidencyPolicy, Rule

Record = tuple[int, int]
"""Key and time; its place in the input is its value."""
Session = tuple[Any, tuple[tuple[int, int], ...]]

GAP = 10
STREAMING = [ResidencyPolicy(rule, complete_only=True) for rule in Rule if rule != Rule.INC]
DINC = STREAMING[0]
KEY = pa.field("user", pa.int64())


def sessions_of(records: list[Record]) -> list[Session]:
    """The reference, in plain Python."""
    by_key: dict[int, list[tuple[int, int]]] = {}
    for value, (key, time) in enumerate(records):
        by_key.setdefault(key, []).append((time, value))
    sessions: list[Session] = []
    for key, clicks in by_key.items():
        open_one: list[tuple[int, int]] = []
        for click in sorted(clicks):
            if open_one and click[0] - open_one[-1][0] >= GAP:
                sessions.append((key, tuple(open_one)))
                open_one = []
            open_one.append(click)
        sessions.append((key, tuple(open_one)))
    return sorted(sessions)


def parsed(batches: list[pa.RecordBatch]) -> list[Session]:
    """One entry per run of rows of one session: a session that is torn apart gives two."""
    sessions: list[tuple[Any, int, list[tuple[int, int]]]] = []
    for batch in batches:
        for key, start, time, value in zip(*(column.to_pylist() for column in batch.columns)):
            if not sessions or sessions[-1][:2] != (key, start):
                sessions.append((key, start, []))
            sessions[-1][2].append((time, value))
    assert all(start == clicks[0][0] for _, start, clicks in sessions)
    return sorted((key, tuple(clicks)) for key, _, clicks in sessions)


def absorb(buffers: SessionBuffers, records: list[Record], first_value: int, watermark: int) -> list[pa.RecordBatch]:
    keys, times = [key for key, _ in records], [time for _, time in records]
    values = np.arange(first_value, first_value + len(records))
    return buffers.absorb(pa.array(keys, KEY.type), np.array(times, np.int64), values, watermark)


def run(buffers: SessionBuffers, records: list[Record], batch: int) -> list[Session]:
    """Feed batches, each with the best watermark there can be; then finish."""
    out: list[pa.RecordBatch] = []
    for start in range(0, len(records), batch):
        watermark = min(time for _, time in records[start:])
        out += absorb(buffers, records[start : start + batch], start, watermark)
    out += buffers.finish()
    buffers.close()
    return parsed(out)


@pytest.mark.parametrize("policy", [INC, *STREAMING], ids=lambda policy: policy.rule.name)
@given(
    clicks=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 4)), max_size=80),
    slots=st.integers(1, 3),
    width=st.integers(1, 5),
    batch=st.integers(1, 20),
)
@settings(max_examples=60)
# scalla fact 19: each session is output once and whole, in any order within bounds, in buffers of any size
def test_sessions_are_those_of_plain_python(
    tmp_path_factory: Any,
    policy: ResidencyPolicy,
    clicks: list[tuple[int, int, int]],
    slots: int,
    width: int,
    batch: int,
) -> None:
    steps = np.cumsum([step for _, step, _ in clicks]).tolist()
    records = [(key, time + late) for (key, _, late), time in zip(clicks, steps)]
    directory = tmp_path_factory.mktemp("spill")
    buffers = SessionBuffers(KEY, SessionBound(slots, width, GAP, directory, buckets=2), policy)
    assert run(buffers, records, batch) == sessions_of(records)
    assert not [path for path in directory.rglob("*") if path.is_file()]


# scalla fact 19, trap (b) of 2.6
def test_a_key_that_spilled_stays_on_disk_until_its_session_ends(tmp_path: Path) -> None:
    buffers = SessionBuffers(KEY, SessionBound(1, 8, GAP, tmp_path), DINC)
    records = [(1, 0), (2, 8), (2, 17), (2, 26), (2, 40), (2, 41)]
    out = [absorb(buffers, [record], value, record[1]) for value, record in enumerate(records)]
    assert parsed(out[2]) == [(1, ((0, 0),))], "user 1 has expired and makes way"
    assert len(buffers.index) == 1, "at time 40 user 2 gets the buffer, not at 17 or 26"
    expected = [(2, ((8, 1), (17, 2), (26, 3))), (2, ((40, 4), (41, 5)))]
    assert parsed(list(buffers.finish())) == expected
    buffers.close()


def test_a_session_that_outgrows_its_buffer_is_output_whole(tmp_path: Path) -> None:
    buffers = SessionBuffers(KEY, SessionBound(4, 3, GAP, tmp_path), DINC)
    records = [(1, 0), (1, 1), (1, 30), (1, 31), *((1, 32 + i) for i in range(5)), (2, 50), (1, 60)]
    assert run(buffers, records, 2) == sessions_of(records)


def test_a_bucket_too_large_to_sort_is_spread(tmp_path: Path) -> None:
    buffers = SessionBuffers(KEY, SessionBound(16, 128, GAP, tmp_path, buckets=2), INC)
    records = [(n % 97, n // 50) for n in range(3000)]
    out, levels = absorb(buffers, records, 0, 0), set()
    for batch in buffers.finish():
        out.append(batch)
        levels.add(len(list(tmp_path.glob("rows-*"))))
    assert parsed(out) == sessions_of(records)
    assert max(levels) >= 4, "half of 150 kB, and half of that, are too much to sort within 32 kB"
    buffers.close()


def test_open_sessions_cannot_be_pushed_out(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="open sessions"):
        SessionBuffers(KEY, SessionBound(4, 3, GAP, tmp_path), FREQUENT)


def test_records_older_than_the_watermark_are_refused(tmp_path: Path) -> None:
    buffers = SessionBuffers(KEY, SessionBound(4, 3, GAP, tmp_path), DINC)
    absorb(buffers, [(1, 10)], 0, 10)
    with pytest.raises(StateError, match="time 9 came after watermark 10"):
        absorb(buffers, [(1, 9)], 1, 0)
    buffers.close()
