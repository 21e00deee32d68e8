"""Top words over a sliding count window, vectorised: documents are counted a pane at a time.

A window is the last panes of a category, each of so many documents, and slides by a pane: entries of the state are panes of
some kilobytes, so that the 300 to 400 bytes that the store of ``process`` adds to an entry do not count, and what a
pane's words change is one addition of arrays. The plain version, with a result after every document, is
``examples/topk_words.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.bench.elasticity.documents import CATEGORIES, VOCABULARY, Documents
from headrace.bench.elasticity.filling import FillingSource, Ints, Phases
from headrace.bench.measuring.recorder import Table

K, PANE = 10, 32
COLUMNS = (
    "category", "number", "due_us", *(f"word{i}" for i in range(K)), *(f"count{i}" for i in range(K))
)  # fmt: skip
_SCHEMA = pa.schema(
    [("number", pa.int64()), ("category", pa.int64()), ("due_us", pa.int64()), ("words", pa.binary()), ("whole", pa.bool_())]
)  # fmt: skip
_POOL, _BLOCK = 4096, 100
_NOTHING = np.zeros(VOCABULARY, np.int32).tobytes()
Counts = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class TopWordsLoad:
    """Documents; those that fill the state come as whole panes, to each category as many as its window has."""

    panes: int
    phases: Phases

    @staticmethod
    def of(state_bytes: int, paced: int, burst: int, rate: int) -> TopWordsLoad:
        panes = max(state_bytes // (CATEGORIES * pane_bytes()), 1)
        return TopWordsLoad(panes, Phases(panes * CATEGORIES, paced, burst, rate))

    def schema(self) -> pa.Schema:
        return _SCHEMA

    def batch(self, numbers: Ints, due_us: Ints) -> pa.RecordBatch:
        whole = numbers < self.phases.fill
        words = [self.pane(n) if fills else document(n) for n, fills in zip(numbers.tolist(), whole.tolist())]
        columns = (numbers, self.categories(numbers), due_us, words, whole)
        return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, _SCHEMA)], schema=_SCHEMA)

    def categories(self, numbers: Ints) -> Ints:
        return np.where(numbers < self.phases.fill, numbers % CATEGORIES, Documents().categories(numbers))

    def pane(self, number: int) -> bytes:
        """What record ``number`` fills the state with."""
        return b"".join(document(number * PANE + i) for i in range(PANE))


def document(number: int) -> bytes:
    """The words of a document that are not stop words, four bytes each."""
    return _documents()[number * 2_654_435_761 % 4_294_967_291 % _POOL]


def pane_bytes() -> int:
    """Of an average pane."""
    return PANE * sum(map(len, _documents())) // _POOL


@lru_cache(1)
def _documents() -> list[bytes]:
    offsets, words = Documents().words(np.arange(_POOL))
    texts = (words[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist()))
    return [text[text >= 0].astype(np.int32).tobytes() for text in texts]


@dataclass(frozen=True, slots=True)
class CountPanes:
    """The keyed step: ``panes`` is the window's length."""

    panes: int

    def __call__(self, record: dict[str, Any], state: Any, out: Callable[[dict[str, Any]], None]) -> None:
        pane = record["words"] if record["whole"] else _closed(state["open"], record["words"])
        if pane is None:
            return
        window, kept = state["window"], state["counts"]
        window.append(pane)
        counts = np.frombuffer(kept.get(_NOTHING), np.int32) + counted(pane)
        if len(window) > self.panes:
            counts -= counted(window.popleft())
        kept.set(counts.tobytes())
        if not record["whole"]:
            words = top(counts)
            values = (record["category"], record["number"], record["due_us"], *words.tolist(), *counts[words].tolist())
            out(dict(zip(COLUMNS, values)))


def _closed(opened: Any, words: bytes) -> bytes | None:
    """The pane that a document completes."""
    opened.append(words)
    if len(opened) < PANE:
        return None
    pane = b"".join(opened)
    opened.clear()
    return pane


def counted(words: bytes) -> Counts:
    return np.bincount(np.frombuffer(words, np.int32), minlength=VOCABULARY).astype(np.int32)


def top(counts: Counts) -> Ints:
    """The K most frequent words; of equally frequent ones the first of the vocabulary.

    K blocks of words have one that is as frequent as ``least``, so the K most frequent words are so too.
    """
    least = np.sort(counts.reshape(-1, _BLOCK).max(axis=1))[-K]
    words = np.flatnonzero(counts >= least)
    return words[np.lexsort((words, -counts[words]))][:K]


def top_words_job(load: TopWordsLoad, sink: Any) -> hr.Job:
    job = hr.Job("bench-topk")
    keyed = job.source("documents", FillingSource(load)).key_by("category")
    state = {"window": hr.queue(), "open": hr.queue(), "counts": hr.value()}
    keyed.process(CountPanes(load.panes), name="top", state=state, returns=dict.fromkeys(COLUMNS, "int64")).sink(
        "out", sink
    )
    return job


def expected_tops(load: TopWordsLoad) -> Ints:
    """The offline reference, a row of category, number, words and counts for each pane that is completed."""
    phases, rows = load.phases, []
    live = np.arange(phases.fill, phases.total)
    of_category = load.categories(live)
    for category in range(CATEGORIES):
        numbers = live[of_category == category].tolist()
        panes = [load.pane(n) for n in range(category, phases.fill, CATEGORIES)]
        counts = np.bincount(np.frombuffer(b"".join(panes), np.int32), minlength=VOCABULARY)
        for at in range(PANE, len(numbers) + 1, PANE):
            panes.append(b"".join(map(document, numbers[at - PANE : at])))
            changes = (panes[-1], 1), (panes.pop(0), -1)
            for pane, sign in changes:
                np.add.at(counts, np.frombuffer(pane, np.int32), sign)
            words = np.argsort(-counts, kind="stable")[:K]
            rows.append(np.concatenate(([category, numbers[at - 1]], words, counts[words])))
    return np.array(rows, np.int64).reshape(-1, 2 + 2 * K)


def check_tops(load: TopWordsLoad, table: Table) -> dict[str, int]:
    """Every expected row once, and just as it should be."""
    expected = expected_tops(load)
    found = np.stack([table[name] for name in COLUMNS if name != "due_us"], axis=1)
    wanted = {int(row[1]): row for row in expected}
    numbers = found[:, 1].tolist()
    return {
        "lost": len(wanted.keys() - set(numbers)),
        "duplicated": len(numbers) - len(set(numbers)),
        "wrong": sum(n not in wanted or not np.array_equal(wanted[n], row) for n, row in zip(numbers, found)),
    }
