"""``bench latency`` and ``bench keyed-count``: due time → result handed to the sink, open loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace as hr
from headrace.bench.measuring.figures import TreeWatch, cut_figures, latency_figures, longest_gap_ms, with_prefix
from headrace.bench.measuring.recorder import Table, recording
from headrace.bench.stock.jobs import run_stock

_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class Numbered:
    """The input: record ``n`` has a key that is a fixed function of ``n``."""

    keys: int

    def __call__(self, n: npt.NDArray[np.int64]) -> dict[str, Any]:
        return {"seq": n, "key": self.key(n)}

    def key(self, n: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return (n * 2_654_435_761 + 12_345) % 4_294_967_291 % self.keys


def count_up(record: dict[str, Any], state: Any, out: Any) -> None:
    """A keyed step in plain Python: number each key's records."""
    n = state["n"].get(0) + 1
    state["n"].set(n)
    out({"key": record["key"], "n": n, "seq": record["seq"], "due_us": record["due_us"]})


def numbered_job(name: str, make: Numbered, rate: int, total: int, sink: Any) -> hr.Job:
    """Python source → shuffle → keyed Python step → sink."""
    job = hr.Job(name)
    items = job.source("items", hr.generate(make, rate=f"{rate}/s", total=total, due="due_us"))
    items.key_by("key").process(count_up, name="count", state={"n": hr.value()}).sink("out", sink)
    return job


def latency(rate: int, seconds: int, warmup_s: int, stock_seconds: int, **settings: Any) -> dict[str, Any]:
    """The numbered job, every item timed by itself."""
    make, total = Numbered(1000), rate * seconds
    with recording(("key", "n", "seq", "due_us")) as recorder:
        job = numbered_job("bench-latency", make, rate, total, hr.callback(recorder))
        with TreeWatch() as watch:
            run = hr.run(job, **settings)
        table = recorder.read()
    figures = recorded_figures(table, watch, run, total, warmup_s, (table["now_us"] - table["due_us"]) / 1000, None)
    figures |= check_each(table, make, total)
    if stock_seconds:
        stock = run_stock("latency", rate=rate, seconds=stock_seconds)
        figures |= with_prefix("stock", stock)
        figures["ratio"] = round(stock["p99_ms"] / figures["p99_ms"], 1)
    return figures


def keyed_count(rate: int, seconds: int, warmup_s: int, **settings: Any) -> dict[str, Any]:
    """Running count per key by the vectorised reduce; each result stands for the items new in it.

    A result carries the count and the sum of due times, so the difference from the key's previous
    result gives the number of items and their mean due time: exact where a buffer holds one item of
    the key, which is most of them, and the mean of those in one buffer otherwise.
    """
    make, total = Numbered(_KEYS), rate * seconds
    with recording(("key", "n", "due_us")) as recorder:
        job = hr.Job("bench-keyed-count")
        items = job.source("items", hr.generate(make, rate=f"{rate}/s", total=total, due="due_us"))
        counted = items.key_by("key").reduce(name="count", n=hr.count(), due_us=hr.sum("due_us"))
        counted.sink("out", hr.callback(recorder))
        with TreeWatch() as watch:
            run = hr.run(job, **settings)
        table = recorder.read()
    order = np.lexsort((table["n"], table["key"]))
    key, n, due, now = (table[c][order] for c in ("key", "n", "due_us", "now_us"))
    first = np.concatenate(([True], key[1:] != key[:-1]))
    new = n - np.where(first, 0, np.concatenate(([0], n[:-1])))
    due_new = due - np.where(first, 0, np.concatenate(([0], due[:-1])))
    latency_ms = (now - due_new / np.maximum(new, 1)) / 1000
    sorted_table = {"now_us": now}
    figures = recorded_figures(sorted_table, watch, run, total, warmup_s, latency_ms, new.astype(np.float64))
    expected = np.bincount(make.key(np.arange(total)), minlength=_KEYS)
    got = np.zeros(_KEYS, np.int64)
    np.maximum.at(got, key, n)
    due_total = np.zeros(_KEYS, np.int64)
    np.maximum.at(due_total, key, due)
    figures |= {
        "lost": int(np.maximum(expected - got, 0).sum()),
        "duplicated": int(np.maximum(got - expected, 0).sum()),
        "wrong": int(((got != expected) & (got > 0)).sum() + (new <= 0).sum()),
    }
    return figures


def recorded_figures(
    table: Table, watch: TreeWatch, run: Any, total: int, warmup_s: int, latency_ms: Any, weights: Any
) -> dict[str, Any]:
    """The figures of a run whose results were recorded; ``weights`` is how many items each result stands for."""
    now = table["now_us"]
    if not len(now):
        raise hr.HeadraceError("the bench job produced no result")
    warm = now >= now.min() + warmup_s * 1_000_000
    span_s = (now.max() - now.min()) / 1e6
    return {
        "items": total,
        "items_per_s": round(total / span_s, 1),
        **latency_figures(latency_ms[warm], weights[warm] if weights is not None else None),
        **watch.figures(),
        **cut_figures(run),
        "restarts": run.status().restarts,
        "longest_gap_ms": longest_gap_ms(now[warm]),
    }


def check_each(table: Table, make: Numbered, total: int) -> dict[str, int]:
    """Every item once; the i-th record of a key has count i."""
    seen = np.bincount(table["seq"], minlength=total)
    order = np.lexsort((table["n"], table["key"]))
    key, n = table["key"][order], table["n"][order]
    heads = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    lengths = np.diff(np.concatenate((heads, [len(key)])))
    expected = np.arange(len(key)) - np.repeat(heads, lengths) + 1
    return {
        "lost": int((seen == 0).sum()),
        "duplicated": int(np.maximum(seen - 1, 0).sum()),
        "wrong": int((n != expected).sum() + (table["key"] != make.key(table["seq"])).sum()),
    }
