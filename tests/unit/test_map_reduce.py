"""Programs written for MapReduce, unchanged: over the whole input and over windows, one feeding another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import reference as ref
from reference import Record
from workflows import MS, out

import headrace as hr
from headrace.testing import run_local, scripted

MODES = ("realtime", "microbatch", "batch")
LINES = [{"line": f"to {'be ' * (i % 5)}or not {i % 7}", "t": 10 * i} for i in range(200)]


def words(record: Record) -> Iterator[tuple[str, int]]:
    for word in record["line"].split():
        yield word, 1


def add(word: str, counts: list[int]) -> int:
    return sum(counts)


def by_count(record: Record) -> Iterable[tuple[int, list[str]]]:
    return [(record["value"], [record["key"]])]


def joined(count: int, lists: list[list[str]]) -> list[str]:
    return sorted(word for part in lists for word in part)


def meaning(
    records: Iterable[Any], map: Callable[[Any], Iterable[tuple[Any, Any]]], reduce: Callable[[Any, list[Any]], Any]
) -> dict[Any, Any]:
    groups: dict[Any, list[Any]] = {}
    for record in records:
        for key, value in map(record):
            groups.setdefault(key, []).append(value)
    return {key: reduce(key, values) for key, values in groups.items()}


def per_window(size: int, every: int) -> dict[int, dict[str, int]]:
    """Word counts by end of window, in ms."""
    ends = sorted({end for line in LINES for end in ref.window_ends(line["t"], size, every)})
    return {end: meaning([one for one in LINES if end - size <= one["t"] < end], words, add) for end in ends}


WINDOWS = {"tumbling": (500, 500), "sliding": (600, 200), "uneven": (500, 300)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("combine", [add, None], ids=["combine", "plain"])
def test_the_whole_input(mode: str, combine: Any) -> None:
    job = hr.Job("job")
    lines = job.source("lines", scripted(LINES[:120], LINES[120:]), event_time="t")
    counts = job.map_reduce("words", inputs=[lines], map=words, combine=combine, reduce=add)
    counts.sink("out", out())
    job.map_reduce("by-count", inputs=[counts], map=by_count, reduce=joined).sink("second-out", out())
    got = run_local(job, mode=mode, seed=4, poll_rows=30)
    counted = meaning(LINES, words, add)
    assert {row["key"]: row["value"] for row in got["out"]} == counted and len(got["out"]) == len(counted)
    pairs = [{"key": key, "value": value} for key, value in counted.items()]
    assert {row["key"]: row["value"] for row in got["second-out"]} == meaning(pairs, by_count, joined)


# cmr fact 7: one program behind another, each with its windows, equals the reference
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", WINDOWS)
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "inferred"])
def test_windows_of_a_stream(mode: str, shape: str, declared: bool) -> None:
    size, every = WINDOWS[shape]
    window = hr.sliding(f"{size} ms", every=f"{every} ms")
    types: dict[str, Any] = {"pairs": {"key": "str", "value": "int"}, "returns": {"key": "str", "value": "int"}}
    job = hr.Job("job")
    lines = job.source("lines", scripted(LINES), event_time="t")
    counts = job.map_reduce(
        "words", inputs=[lines], map=words, combine=add, reduce=add, window=window, **(types if declared else {})
    )
    counts.sink("out", out())
    again = job.map_reduce("by-count", inputs=[counts], map=by_count, reduce=joined, window=hr.tumbling(f"{every} ms"))
    again.sink("second-out", out())
    got = run_local(job, mode=mode, seed=4, poll_rows=30)
    first: list[Record] = []
    second: list[Record] = []
    for end, counted in per_window(size, every).items():
        bounds = {"window_start": ref.at((end - size) * MS), "window_end": ref.at(end * MS)}
        first += [{"key": key, "value": value, **bounds} for key, value in counted.items()]
        # Results of a window have its last instant as their time: they fall into the window of the same end.
        pairs = [{"key": key, "value": value} for key, value in counted.items()]
        bounds |= {"window_start": ref.at((end - every) * MS)}
        second += [{"key": key, "value": value, **bounds} for key, value in meaning(pairs, by_count, joined).items()]
    assert ref.bag(got["out"]) == ref.bag(first)
    assert ref.bag(got["second-out"]) == ref.bag(second)
