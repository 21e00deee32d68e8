"""The buffer experiment: its job answers rightly, its settings and figures are what they are called."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.bench.guarantees.buffer_tradeoff import (
    DEADLINES,
    ITEM_BYTES,
    PHASES,
    SIZES,
    BufferSetting,
    answer,
    check,
    job_of,
    numbered,
    out_of_order,
    row_of,
    summary,
)
from headrace.config import Settings
from headrace.connect.generate import as_batch
from headrace.testing import run_local

NONE = {"lost": 0, "duplicated": 0, "wrong": 0}


def recorded(seq: np.ndarray, latency_us: int = 0) -> dict[str, np.ndarray]:
    due_us = 1_000_000 + 10 * seq
    return {"seq": seq, "due_us": due_us, "now_us": due_us + latency_us, "answer": answer(seq)}


def test_items_are_as_large_as_in_the_papers() -> None:
    n = np.arange(100)
    assert as_batch({**numbered(n), "due_us": n}, len(n), None).nbytes == ITEM_BYTES * len(n) - 8 * len(n)
    assert ITEM_BYTES == 128  # the answer, made by the receiver, is the rest


# nephele-qos fact 22: the answers do not depend on how buffers are flushed
@pytest.mark.parametrize("setting", [DEADLINES[0], DEADLINES[3], SIZES[0], SIZES[2]], ids=lambda s: s.name)
def test_every_setting_gives_the_same_answers(setting: BufferSetting) -> None:
    rows = run_local(job_of(print, paced=False, total=200), parallelism=1, **setting.options(paced=False))["out"]
    table = {name: np.array([row[name] for row in rows]) for name in ("seq", "answer")}
    assert len(rows) == 200 and check(table) == NONE


def test_settings_are_those_of_a_run() -> None:
    for setting in (*DEADLINES, *SIZES):
        chosen = Settings.of(**setting.options(paced=True))
        if setting.items is None:
            assert chosen.flush_s == (setting.deadline_ms or 0) / 1000
        else:
            assert chosen.flush_bytes == chosen.poll_rows * ITEM_BYTES == setting.items * ITEM_BYTES
    assert Settings.of(**SIZES[0].options(paced=False)).flush_s == 0  # one item is a flush per item
    assert [setting.name for setting in (DEADLINES[0], SIZES[-1])] == ["0 ms", "65536 B"]


def test_every_difference_is_found() -> None:
    whole = recorded(np.arange(10))
    assert check(whole) == NONE
    assert check({name: np.delete(values, 4) for name, values in whole.items()}) == {**NONE, "lost": 1}
    assert check({name: np.append(values, values[4]) for name, values in whole.items()}) == {**NONE, "duplicated": 1}
    assert check({**whole, "answer": whole["answer"] + (whole["seq"] == 3)}) == {**NONE, "wrong": 1}


def test_a_line_has_each_rates_latency_and_the_saturated_rate() -> None:
    ends = np.cumsum([phase_s * per_s for _, phase_s, per_s in PHASES]).astype(int)
    low = recorded(np.arange(ends[0]), 5_000)
    middle = recorded(np.arange(ends[0], ends[1]), 7_000)
    paced = {name: np.concatenate((low[name], middle[name])) for name in low}
    saturated = {**recorded(np.arange(1001)), "now_us": np.arange(1001) * 2000}
    row = row_of(SIZES[1], paced, saturated)
    assert row == {
        "flush": "1024 B", "low_ms": 5.0, "middle_ms": 7.0, "high_ms": None, "saturated_items_per_s": 500,
    }  # fmt: skip


# nephele-qos fact 14: throughput rises with buffer size, flush per item is slowest; thesis, figure 2: so does latency
def test_what_contradicts_the_papers_is_counted() -> None:
    assert out_of_order([1.0, 2.0, 1.9, 4.0, 4.0]) == 0  # within noise
    assert out_of_order([4.0, 3.0, 2.0, 5.0]) == 2
    rows = [
        {"flush": setting.name, "low_ms": 1.0 + at, "saturated_items_per_s": 100 * (1 + at)}
        for part in (DEADLINES, SIZES)
        for at, setting in enumerate(part)
    ]
    figures = summary(rows)
    assert figures["out_of_order"] == 0
    assert (figures["latency_ratio"], figures["throughput_ratio"]) == (5.0, 5.0)
    assert (figures["deadline_latency_ratio"], figures["deadline_throughput_ratio"]) == (8.0, 8.0)
    rows[-1]["saturated_items_per_s"] = 50
    assert summary(rows)["out_of_order"] == 1
