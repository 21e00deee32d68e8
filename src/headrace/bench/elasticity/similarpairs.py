"""Similar messages over a sliding count window, vectorised: each message is compared with all of its location's window.

A window is the last full panes of a location and the messages since: a scan reads arrays, not entries. Best pairs are told
per second of event time. The plain version is ``examples/tweet_similarity.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

import headrace as hr
from headrace.bench.elasticity.documents import LOCATIONS, MESSAGE_WORDS, VOCABULARY, Messages
from headrace.bench.elasticity.filling import FillingSource, Ints, Phases
from headrace.bench.measuring.recorder import Table

MESSAGES = 256
"""In a pane."""
COLUMNS = ("location", "second", "number", "like", "shared", "due_us")
_NO_WORD = VOCABULARY
"""In place of a word that occurs a second time in a message: shared words count once."""
_SECOND_US = 1_000_000
_START = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEMA = pa.schema(
    [("number", pa.int64()), ("location", pa.int64()), ("due_us", pa.int64()), ("at", pa.int64()), ("words", pa.binary()),
     ("whole", pa.bool_())]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SimilarityLoad:
    """Messages; those that fill the state come as whole panes, to each location as many as its window has.

    A message goes by its place among those of its location, from 0.
    """

    panes: int
    phases: Phases

    @staticmethod
    def of(state_bytes: int, paced: int, burst: int, rate: int) -> SimilarityLoad:
        panes = max(state_bytes // (LOCATIONS * MESSAGES * MESSAGE_WORDS * 4), 1)
        return SimilarityLoad(panes, Phases(panes * LOCATIONS, paced, burst, rate))

    def schema(self) -> pa.Schema:
        return _SCHEMA

    def batch(self, numbers: Ints, due_us: Ints) -> pa.RecordBatch:
        whole = numbers < self.phases.fill
        words = [
            (self.pane(n) if fills else self.message(n)).tobytes() for n, fills in zip(numbers.tolist(), whole.tolist())
        ]
        columns = (numbers, self.locations(numbers), due_us, self.phases.event_us(numbers), words, whole)
        return pa.RecordBatch.from_arrays([pa.array(c, f.type) for c, f in zip(columns, _SCHEMA)], schema=_SCHEMA)

    def locations(self, numbers: Ints) -> Ints:
        return np.where(numbers < self.phases.fill, numbers % LOCATIONS, Messages().locations(numbers))

    def pane(self, number: int) -> Any:
        """What record ``number`` fills the state with: a row of words for each message."""
        return distinct(Messages(seed=2).words(np.arange(number * MESSAGES, (number + 1) * MESSAGES)))

    def message(self, number: int) -> Any:
        return distinct(Messages().words(np.array([number])))


def distinct(words: Ints) -> Any:
    """Rows of words in order, each word once."""
    ordered = np.sort(words, axis=1).astype(np.int32)
    again = ordered[:, 1:] == ordered[:, :-1]
    ordered[:, 1:][again] = _NO_WORD
    return ordered


@dataclass(frozen=True, slots=True)
class ComparePanes:
    """The keyed step: ``panes`` is the window's length."""

    panes: int

    def __call__(self, record: dict[str, Any], state: Any, out: Callable[[dict[str, Any]], None]) -> None:
        window, seen = state["window"], state["seen"]
        if record["whole"]:
            self._shift(window, record["words"])
            seen.set(seen.get(0) + MESSAGES)
            return
        opened, place = state["open"], seen.get(0)
        first = place - len(opened) - len(window) * MESSAGES
        shared, at = most_shared([*window, b"".join(opened)], record["words"])
        self._note(record, state, shared, first + at)
        opened.append(record["words"])
        seen.set(place + 1)
        if len(opened) == MESSAGES:
            self._shift(window, b"".join(opened))
            opened.clear()

    def _shift(self, window: Any, pane: bytes) -> None:
        window.append(pane)
        if len(window) > self.panes:
            window.popleft()

    def _note(self, record: dict[str, Any], state: Any, shared: int, like: int) -> None:
        """The best pair of the second so far; a timer is set with the first."""
        second, pairs = record["at"] // _SECOND_US, state["pairs"]
        best = pairs.get(second)
        if shared > (best[0] if best else 0):
            end_us = (second + 1) * _SECOND_US
            pairs.set(second, (shared, record["number"], like, record["due_us"] + end_us - record["at"]))
            if best is None:
                state.timer(at=_START + timedelta(microseconds=end_us), tag=str(second))


def tell_pair(timer: Any, state: Any, out: Callable[[dict[str, Any]], None]) -> None:
    """A second is over."""
    second = int(timer.tag)
    shared, number, like, due_us = state["pairs"].get(second)
    state["pairs"].delete(second)
    out(dict(zip(COLUMNS, (timer.key, second, number, like, shared, due_us))))


def most_shared(panes: list[bytes], words: bytes) -> tuple[int, int]:
    """How many words the most similar message shares, and which it is: the first of several."""
    marked = np.zeros(VOCABULARY + 1, np.int8)
    marked[np.frombuffer(words, np.int32)] = 1
    marked[_NO_WORD] = 0
    most, where, before = 0, 0, 0
    for pane in panes:
        if not pane:
            continue
        shared = marked.take(np.frombuffer(pane, np.int32)).reshape(-1, MESSAGE_WORDS).sum(axis=1, dtype=np.int8)
        at = int(shared.argmax())
        if shared[at] > most:
            most, where = int(shared[at]), before + at
        before += len(shared)
    return most, where


def similarity_job(load: SimilarityLoad, sink: Any) -> hr.Job:
    job = hr.Job("bench-similarity")
    keyed = job.source("messages", FillingSource(load), event_time="at", time_unit="us").key_by("location")
    state = {"window": hr.queue(), "open": hr.queue(), "seen": hr.value(), "pairs": hr.mapping()}
    similar = keyed.process(
        ComparePanes(load.panes),
        on_timer=tell_pair,
        name="similar",
        state=state,
        returns=dict.fromkeys(COLUMNS, "int64"),
    )
    similar.sink("out", sink)
    return job


def expected_pairs(load: SimilarityLoad) -> Iterator[tuple[int, ...]]:
    """The offline reference: location, second, number, like, shared of each best pair, by an index of words."""
    phases = load.phases
    live = np.arange(phases.fill, phases.total)
    of_location = load.locations(live)
    for location in range(LOCATIONS):
        numbers = live[of_location == location]
        panes = [load.pane(n) for n in range(location, phases.fill, LOCATIONS)]
        rows = np.concatenate([*panes, *(load.message(n) for n in numbers.tolist())])
        yield from _best_pairs(location, load, numbers, rows)


def _best_pairs(location: int, load: SimilarityLoad, numbers: Ints, rows: Ints) -> Iterator[tuple[int, ...]]:
    order = np.argsort(rows.ravel(), kind="stable")
    places, begins = order // MESSAGE_WORDS, np.searchsorted(rows.ravel()[order], np.arange(VOCABULARY + 1))
    best: dict[int, tuple[int, ...]] = {}
    first_live = len(rows) - len(numbers)
    for i, number in enumerate(numbers.tolist()):
        place = first_live + i
        since = max(place // MESSAGES - load.panes, 0) * MESSAGES
        words = rows[place][rows[place] != _NO_WORD].tolist()
        with_word = np.concatenate([places[begins[word] : begins[word + 1]] for word in words])
        shared = np.bincount(with_word[(with_word >= since) & (with_word < place)] - since, minlength=1)
        most, second = int(shared.max()), int(load.phases.event_us(np.array([number]))[0]) // _SECOND_US
        if most > best.get(second, (0,))[0]:
            best[second] = most, number, since + int(shared.argmax())
    yield from ((location, second, number, like, shared) for second, (shared, number, like) in best.items())


def check_pairs(load: SimilarityLoad, table: Table) -> dict[str, int]:
    """Every best pair once, and just as it should be."""
    wanted = {row[:2]: row for row in expected_pairs(load)}
    found = list(zip(*(table[name].tolist() for name in COLUMNS[:5])))
    keys = [row[:2] for row in found]
    return {
        "lost": len(wanted.keys() - set(keys)),
        "duplicated": len(keys) - len(set(keys)),
        "wrong": sum(wanted.get(key) != row for key, row in zip(keys, found)),
    }
