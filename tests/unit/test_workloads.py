"""ChronoStream's workloads: the examples give the answers of plain Python, whatever runs where and restarts when."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from acts import in_acts, play
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from soaking import MORE

import headrace as hr
from headrace.bench.elasticity.documents import CATEGORIES, STOP_WORDS, Documents, Messages
from headrace.cli.apps import load_module
from headrace.testing import run_local

EXAMPLES = Path(__file__).parents[2] / "examples"
MODES = ("realtime", "microbatch", "batch")
Row = dict[str, Any]


@pytest.fixture(scope="module")
def programs() -> Iterator[dict[str, ModuleType]]:
    """The examples by name, with windows so short that most records push one out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.setenv("PYTHONPATH", "")
        loaded = {name: load_module(EXAMPLES / f"{name}.py") for name in ("topk_words", "tweet_similarity")}
        for module in loaded.values():
            patch.setattr(module, "WINDOW", 5)
        yield loaded
        for name in loaded:
            sys.modules.pop(name, None)


def records_of(make: Documents | Messages, total: int) -> list[Row]:
    columns = {name: column.tolist() for name, column in make(np.arange(total)).items()}
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def top_words(documents: list[Row], window: int, k: int) -> list[Row]:
    """Counts all words of the window anew for every document."""
    rows, windows = [], defaultdict[int, list[list[str]]](list)
    for document in documents:
        texts = windows[document["category"]]
        texts.append([word for word in document["text"].split() if word not in STOP_WORDS])
        counts = Counter(word for text in texts[-window:] for word in text)
        top = sorted(counts.items(), key=lambda word: (-word[1], word[0]))[:k]
        row = {"category": document["category"], "number": document["number"]}
        rows.append(row | {"words": [word for word, _ in top], "counts": [n for _, n in top]})
    return rows


def similar_tweets(tweets: list[Row], window: int) -> list[Row]:
    """Compares every tweet with all those before it in its window."""
    before = defaultdict[int, list[tuple[int, set[str]]]](list)
    best: dict[tuple[int, int], tuple[int, int, int]] = {}
    for tweet in tweets:
        place, words = tweet["location"], set(tweet["text"].split())
        pairs = [(len(words & others), -number) for number, others in before[place][-window:]]
        shared, other = max(pairs, default=(0, 0))
        at = place, tweet["at"] // 1000
        if shared > best.get(at, (0,))[0]:
            best[at] = shared, tweet["number"], -other
        before[place].append((tweet["number"], words))
    return [
        {"location": place, "second": second, "tweet": tweet, "like": other, "shared": shared}
        for (place, second), (shared, tweet, other) in best.items()
    ]


def by_number(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.get("number", 0), row.get("second", 0), row.get("location", 0)))


CASES: dict[str, tuple[Any, int]] = {"topk_words": (Documents(), 300), "tweet_similarity": (Messages(), 2500)}


def wanted(program: ModuleType, name: str) -> list[Row]:
    records = records_of(*CASES[name])
    if name == "topk_words":
        return by_number(top_words(records, program.WINDOW, program.K))
    return by_number(similar_tweets(records, program.WINDOW))


# chronostream fact 37: real-time, micro-batch and batch mode give equal results
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", CASES)
def test_workloads_give_the_reference(programs: dict[str, ModuleType], name: str, mode: str) -> None:
    make, total = CASES[name]
    rows = run_local(programs[name].program(hr.generate(make, total=total, partitions=1)), mode=mode)["out"]
    assert by_number(rows) == wanted(programs[name], name)
    assert len(rows) > 250


# chronostream fact 1: any slice count, subtask count and schedule of restarts gives the one-process reference
@pytest.mark.parametrize("mode", ["realtime", "microbatch"])
@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 10**6), acts=st.integers(2, 4), slices=st.sampled_from([1, 2, 7, 64]))
@settings(max_examples=2 * MORE, phases=[Phase.generate])
def test_restarts_and_slices_change_nothing(
    programs: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory, name: str, mode: str, seed: int,
    acts: int, slices: int,
) -> None:  # fmt: skip
    make, total = CASES[name]
    schema = hr.generate(make, total=total).schema()
    source = in_acts([records_of(make, total)], schema, acts, seed)
    job, checkpoint = programs[name].program(source), tmp_path_factory.mktemp(name)
    rows = play(job, source, checkpoint, mode=mode, acts=acts, seed=seed, slices=slices, poll_rows=50)["out"]
    assert by_number(rows) == wanted(programs[name], name)


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), max_size=40), st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=40 * MORE)
def test_leaders_are_exact_for_any_texts(
    programs: dict[str, ModuleType], texts: list[list[str]], window: int, k: int
) -> None:
    """Few words with close counts: leaders fall behind and are looked up again."""
    program, documents = programs["topk_words"], []
    for number, words in enumerate(texts):
        documents.append({"category": 0, "number": number, "text": " ".join(words)})
    rows: list[Row] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "WINDOW", window)
        patch.setattr(program, "K", k)
        state = {"window": _Window(), "counts": _Counts(), "leaders": _Last()}
        for document in documents:
            program.top_words(document, state, rows.append)
        for row, right in zip(rows, top_words(documents, window, k), strict=True):
            assert row == right
    assert all(state["counts"].values())


class _Window(list[Any]):
    def popleft(self) -> Any:
        return self.pop(0)


class _Counts(dict[str, int]):
    set, delete = dict.__setitem__, dict.__delitem__


class _Last:
    def __init__(self) -> None:
        self._value: Any = None

    def get(self, default: Any) -> Any:
        return default if self._value is None else self._value

    def set(self, value: Any) -> None:
        self._value = value


def test_documents_are_as_the_paper_says() -> None:
    made = Documents()(np.arange(20_000))
    sizes = [len(text) for text in made["text"].to_pylist()]
    assert 450 < np.mean(sizes) < 500 and np.median(sizes) < np.mean(sizes), "474 bytes on average, log-normal"
    offsets, words = Documents().words(np.arange(2000))
    assert len(offsets) == 2001 and 0.28 < (words < 0).mean() < 0.32, "three of ten words are stop words"
    shares = np.sort(np.bincount(made["category"], minlength=CATEGORIES))[::-1] / 20_000
    assert len(shares) == CATEGORIES and abs(shares[0] / shares[9] - 10**0.8) < 1.0
    assert Documents(seed=2)(np.arange(5))["text"].to_pylist() != made["text"][:5].to_pylist()
    assert Documents()(np.array([7]))["text"].to_pylist() == made["text"][7:8].to_pylist()
