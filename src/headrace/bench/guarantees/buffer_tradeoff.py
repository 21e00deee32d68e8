"""``bench buffer-tradeoff``: what a buffer costs in latency and gains in throughput (Figure 2 of thesis and HPDC'12).

One sender, one shuffle, one receiver, items of 128 bytes, as in the papers. They flush by size, or after each item; we
also flush by deadline. Where they offer one rate at a time, a run here has a low, a middle and a high rate one after the
other, and one more without a clock measures what is carried at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.bench.measuring.figures import TreeWatch
from headrace.bench.measuring.recorder import Table, recording
from headrace.spark.session import open_session

Ints = npt.NDArray[np.int64]
ITEM_BYTES = 128
_PAD_BYTES = ITEM_BYTES - 3 * 8
_PIECE_ITEMS = 8
"""Items a source hands over at a time when it is not paced: buffers then differ by how many such pieces they gather."""
_DEADLINES_MS = (0, 1, 2, 5, 10, 20, 50, 100)
_SIZES_ITEMS = (1, 8, 32, 128, 512)
PHASES = (("low", 4.0, 200), ("middle", 1.0, 2_000), ("high", 1.0, 10_000))
_SATURATED_S = 2.0
_NOISE = 1.25
"""Neighbours that differ by less than this factor are not out of order."""


@dataclass(frozen=True, slots=True)
class BufferSetting:
    """When a buffer is flushed: after ``deadline_ms``, or with ``items`` in it."""

    deadline_ms: float | None = None
    items: int | None = None

    @property
    def name(self) -> str:
        return f"{self.deadline_ms:g} ms" if self.deadline_ms is not None else f"{(self.items or 0) * ITEM_BYTES} B"

    def options(self, *, paced: bool) -> dict[str, Any]:
        """As settings of a run. A buffer is looked at after each poll, so a poll must not be larger than a buffer."""
        if self.items is not None:
            deadline_ms = 60_000 if self.items > 1 else 0
            return {"flush": f"{deadline_ms} ms", "flush_bytes": self.items * ITEM_BYTES, "poll_rows": self.items}
        options: dict[str, Any] = {"flush": f"{self.deadline_ms} ms", "flush_bytes": 16_000_000}
        return options if paced else options | {"poll_rows": _PIECE_ITEMS}


DEADLINES = tuple(BufferSetting(deadline_ms=deadline_ms) for deadline_ms in _DEADLINES_MS)
SIZES = tuple(BufferSetting(items=items) for items in _SIZES_ITEMS)


def numbered(n: Ints) -> dict[str, Any]:
    pad = pa.py_buffer(bytes(_PAD_BYTES * len(n)))
    return {"seq": n, "pad": pa.FixedSizeBinaryArray.from_buffers(pa.binary(_PAD_BYTES), len(n), [None, pad])}


def answer(seq: Ints) -> Ints:
    return seq * seq % 1_000_003


def step(records: pa.RecordBatch) -> pa.RecordBatch:
    """The receiver: reads every item, and answers it."""
    seq = records.column("seq").to_numpy()
    return pa.RecordBatch.from_pydict({"seq": seq, "due_us": records.column("due_us"), "answer": answer(seq)})


def job_of(sink: Callable[[pa.RecordBatch], object], *, paced: bool, total: int | None = None) -> hr.Job:
    rate = [(phase_s, float(per_s)) for _, phase_s, per_s in PHASES] if paced else None
    job = hr.Job("bench-buffer-tradeoff")
    items = job.source("items", hr.generate(numbered, rate=rate, total=total, due="due_us"), parallelism=1)
    # An elastic step starts behind a shuffle that gives it the records as they are.
    items.map_batch(step, name="step", parallelism=(1, 1, 2)).sink("out", hr.callback(sink))
    return job


def carried(session: Any, setting: BufferSetting, *, paced: bool) -> Table:
    """What one setting brought through within the time, at the three rates or as fast as it can."""
    seconds = sum(phase[1] for phase in PHASES) if paced else _SATURATED_S
    with recording(("seq", "due_us", "answer")) as recorder:
        job = job_of(recorder, paced=paced)
        hr.run(job, spark=session, parallelism=1, seconds=seconds, **setting.options(paced=paced))
        return recorder.read()


def check(table: Table) -> dict[str, int]:
    """A run ends after a time: what it took must be there once, complete and with the right answers."""
    seen = np.bincount(table["seq"])
    return {
        "lost": int((seen == 0).sum()),
        "duplicated": int(np.maximum(seen - 1, 0).sum()),
        "wrong": int((table["answer"] != answer(table["seq"])).sum()),
    }


def row_of(setting: BufferSetting, paced: Table, saturated: Table) -> dict[str, Any]:
    """A setting's line: latency at each rate, and items per second without a clock.

    The papers have means; a median does not change when the machine stands still for a moment.
    """
    row: dict[str, Any] = {"flush": setting.name}
    latency_ms = (paced["now_us"] - paced["due_us"]) / 1000
    begin = 0
    for name, phase_s, per_s in PHASES:
        end = begin + round(phase_s * per_s)
        mine = latency_ms[(paced["seq"] >= begin) & (paced["seq"] < end)]
        row[f"{name}_ms"] = round(float(np.median(mine)), 2) if len(mine) else None
        begin = end
    span_s = (saturated["now_us"].max() - saturated["now_us"].min()) / 1e6
    row["saturated_items_per_s"] = round(len(saturated["seq"]) / span_s) if span_s else None
    return row


def out_of_order(values: Sequence[float | None]) -> int:
    """How many values lie clearly below the largest before them, in a row that should grow.

    >>> out_of_order([1.0, 10.0, 9.5, 20.0, 12.0])
    1
    """
    known = [value for value in values if value is not None]
    return sum(value * _NOISE < max(known[:at]) for at, value in enumerate(known) if at)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The papers' claims: with larger buffers, latency at a low rate and throughput both grow."""
    deadlines, sizes = rows[: len(DEADLINES)], rows[len(DEADLINES) :]
    maximum, each = sizes[-1], sizes[0]
    return {
        "items_per_s": max(row["saturated_items_per_s"] for row in rows),
        "latency_ratio": round(maximum["low_ms"] / each["low_ms"], 1),
        "deadline_latency_ratio": round(deadlines[-1]["low_ms"] / deadlines[0]["low_ms"], 1),
        "throughput_ratio": round(maximum["saturated_items_per_s"] / each["saturated_items_per_s"], 1),
        "deadline_throughput_ratio": round(
            deadlines[-1]["saturated_items_per_s"] / deadlines[0]["saturated_items_per_s"], 1
        ),
        "out_of_order": sum(
            out_of_order([row[name] for row in part])
            for part in (deadlines, sizes)
            for name in ("low_ms", "saturated_items_per_s")
        ),
        "settings": list(rows),
    }


def buffer_tradeoff(progress: Callable[[str], None]) -> dict[str, Any]:
    """All settings in one Spark session, after one run that warms it up."""
    rows: list[dict[str, Any]] = []
    checked = {"items": 0, "lost": 0, "duplicated": 0, "wrong": 0}
    session = open_session("realtime", "local[4]", "bench-buffer-tradeoff")
    try:
        carried(session, DEADLINES[-1], paced=False)
        with TreeWatch() as watch:
            for setting in (*DEADLINES, *SIZES):
                paced, saturated = (carried(session, setting, paced=paced) for paced in (True, False))
                rows.append(row_of(setting, paced, saturated))
                for table in (paced, saturated):
                    for name, n in {"items": len(table["seq"]), **check(table)}.items():
                        checked[name] += n
                progress(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    finally:
        session.stop()
    return {**checked, **summary(rows), **watch.figures()}
