"""Every example gives its known answers, in all three modes without Spark; one on Spark is in ``test_cli_spark``.

ChronoStream's workloads are in ``unit/test_workloads``, also with restarts.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from headrace.api.job import Job
from headrace.bench.overlapping.trades import Trades, symbol_names
from headrace.bench.overlapping.trades_windows import windows_of
from headrace.cli.apps import load_module
from headrace.config import Settings
from headrace.driver.identity import identity
from headrace.driver.planning import plan_job
from headrace.testing import run_local

MODES = ("realtime", "microbatch", "batch")
NAMES = (
    *("click_count", "dead_letters", "figure_one", "frequent_users", "hot_topics", "inverted_index", "kmeans_step"),
    *(
        "macd",
        "moving_average",
        "order_payments",
        "sessions",
        "tag_index",
        "topk_words",
        "trigrams",
        "tweet_similarity",
        "unpaid_orders",
        "windowed_words",
    ),
    "word_count",
)


@pytest.fixture
def example(examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """``example(name)`` loads a job; results that it writes go to ``tmp_path``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")

    def load(name: str, job: str = "job") -> Job:
        sys.modules.pop(name, None)
        job = getattr(load_module(examples / f"{name}.py"), job)
        assert isinstance(job, Job)
        return job

    yield load
    for name in NAMES:
        sys.modules.pop(name, None)


def test_these_are_all_examples(examples):
    assert tuple(sorted(path.stem for path in examples.glob("*.py"))) == NAMES


@pytest.mark.parametrize("mode", MODES)
def test_click_count(example, mode):
    rows = run_local(example("click_count"), mode=mode)["out"]
    per_minute = {(row["window_start"].minute, row["page"]): row["n"] for row in rows}
    assert per_minute == {
        (minute, page): 60 if page == "help" else 180
        for minute in range(14, 19)
        for page in ("home", "search", "cart", "help")
    }


@pytest.mark.parametrize("mode", MODES)
def test_sessions(example, mode):
    rows = run_local(example("sessions"), mode=mode)["out"]
    assert sorted((row["user"], row["visits"], row["seconds"], row["path"]) for row in rows) == [
        ("ann", 2, 70, "home > help"),
        ("ann", 3, 117, "home > search > cart"),
        ("bob", 1, 44, "home"),
        ("bob", 3, 245, "search > help"),
        ("cy", 1, 3, "home"),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_order_payments(example, mode, examples):
    answers = run_local(example("order_payments"), mode=mode)
    orders, payments = (
        {index: json.loads(line) for index, line in enumerate((examples / "data" / name).read_text().splitlines())}
        for name in ("placed.jsonl", "paid.jsonl")
    )
    pairs = [
        (o, p)
        for o, order in orders.items()
        for p, payment in payments.items()
        if order["order"] == payment["order"]
        and 0 <= (datetime.fromisoformat(payment["at"]) - datetime.fromisoformat(order["at"])).total_seconds() <= 600
    ]
    paid = sorted((orders[o]["order"], orders[o]["amount"], payments[p]["paid"]) for o, p in pairs)
    assert sorted((row["order"], row["amount"], row["paid"]) for row in answers["paid-out"]) == paid
    alone = [(order["order"], "not paid in time") for o, order in orders.items() if o not in {o for o, _ in pairs}]
    alone += [
        (payment["order"], "a payment without an order")
        for p, payment in payments.items()
        if p not in {p for _, p in pairs}
    ]
    assert sorted((row["order"], row["outcome"]) for row in answers["unmatched-out"]) == sorted(alone)
    assert (len(paid), len(alone)) == (49, 19)


@pytest.mark.parametrize("mode", MODES)
def test_word_count(example, mode):
    rows = run_local(example("word_count"), mode=mode)["out"]
    counts = {row["key"]: row["value"] for row in rows}
    assert (counts["the"], counts["river"], counts["wheel"], counts["headrace"]) == (24, 6, 5, 1)
    assert len(counts) == len(rows)


# scalla facts 1 and 40, by workload: every engine gives the answers of plain Python, in every mode
@pytest.mark.parametrize("mode", MODES)
def test_frequent_users(example, mode):
    rows = run_local(example("frequent_users"), mode=mode)["out"]
    chances = (n * 2_654_435_761 % 1_000_003 / 1_000_003 for n in range(100_000))
    clicks = Counter(int(40_000 * chance**5) for chance in chances)
    assert sorted(row["user"] for row in rows) == sorted(user for user, n in clicks.items() if n >= 50)
    assert all(50 <= row["clicks"] <= clicks[row["user"]] for row in rows)


def _mill(examples: Path) -> list[list[str]]:
    lines = (examples / "data" / "mill.txt").read_text().splitlines()
    return [[word.strip(".,;:!?'\"") for word in line.lower().split()] for line in lines]


@pytest.mark.parametrize("mode", MODES)
def test_trigrams(example, mode, examples):
    rows = run_local(example("trigrams"), mode=mode)["out"]
    counts = Counter(" ".join(three) for line in _mill(examples) for three in zip(line, line[1:], line[2:]))
    assert sorted(row["trigram"] for row in rows) == sorted(trigram for trigram, n in counts.items() if n >= 2)


@pytest.mark.parametrize("mode", MODES)
def test_inverted_index(example, mode, examples):
    rows = run_local(example("inverted_index"), mode=mode)["out"]
    lines: dict[str, set[int]] = {}
    for number, line in enumerate(_mill(examples), 1):
        for word in line:
            lines.setdefault(word, set()).add(number)
    assert len(rows) == len(lines)
    assert {row["word"]: set(row["lines"]) for row in rows} == lines


def _mapped_and_reduced(program: ModuleType, records: list[dict], names: tuple[str, str]) -> dict:
    """What the program's functions mean: map all records, group by key, reduce each group."""
    groups: dict = {}
    for record in records:
        for key, value in getattr(program, names[0])(record):
            groups.setdefault(key, []).append(value)
    return {key: getattr(program, names[1])(key, values) for key, values in groups.items()}


def _comparable(rows: list[dict]) -> dict:
    """Results by window and key; numbers to 9 digits, since sums depend on order."""
    return {
        (row["window_end"].timestamp() if "window_end" in row else None, row["key"]): [
            round(v, 9) if isinstance(v, float) else v for v in row["value"]
        ]
        for row in rows
    }


# a ported MapReduce program, unchanged, over stored data and over windows of a stream; in batch and streaming mode
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "functions", "size_s", "every_s"),
    [("tag_index", ("tags", "united"), 10, 5), ("kmeans_step", ("nearest", "moved"), 30, 30)],
    ids=["tag_index", "kmeans_step"],
)
def test_a_ported_program(example, examples, mode, name, functions, size_s, every_s):
    whole, live = run_local(example(name), mode=mode)["out"], run_local(example(name, "live"), mode=mode)["out"]
    program = sys.modules[name]
    if name == "tag_index":
        records = [json.loads(line) for line in (examples / "data" / "tweets.jsonl").read_text().splitlines()]
        times = [datetime.fromisoformat(record["ts"]).timestamp() for record in records]
    else:
        columns = {name: column.tolist() for name, column in program.points(np.arange(2000)).items()}
        records = [dict(zip(columns, values)) for values in zip(*columns.values())]
        times = [record["at"] / 1000 for record in records]
    wanted = _mapped_and_reduced(program, records, functions)
    assert _comparable(whole) == _comparable([{"key": key, "value": value} for key, value in wanted.items()])
    assert len(whole) == len(wanted) >= 3
    windows = []
    for end in range(int(min(times)) // every_s * every_s, int(max(times)) + size_s + 1, every_s):
        inside = [record for record, at in zip(records, times) if end - size_s <= at < end]
        stamp = datetime.fromtimestamp(end, UTC)
        for key, value in _mapped_and_reduced(program, inside, functions).items():
            windows.append({"key": key, "value": value, "window_end": stamp})
    assert _comparable(live) == _comparable(windows) and len(live) == len(windows) > len(whole)


def test_ported_programs_share_source_and_map(example):
    """Both jobs of an example run together: the input is read and mapped once."""
    both = [example("kmeans_step"), sys.modules["kmeans_step"].live]
    plan = plan_job(both, Path("nowhere"), Settings())
    assert plan.graph.shared == (
        ("kmeans-step-live.points", "kmeans-step.points"),
        ("kmeans-step-live.centres.map", "kmeans-step.centres.map"),
    )
    together = run_local(both)
    assert _comparable(together["kmeans-step.out"]) == _comparable(run_local(both[0])["out"])
    assert _comparable(together["kmeans-step-live.out"]) == _comparable(run_local(both[1])["out"])


@pytest.mark.parametrize("mode", MODES)
def test_windowed_words(example, mode, examples):
    rows = run_local(example("windowed_words"), mode=mode)["out"]
    tweets = [json.loads(line) for line in (examples / "data" / "tweets.jsonl").read_text().splitlines()]
    counts = Counter(
        (tweet["ts"][:17] + ("00" if int(tweet["ts"][17:19]) < 30 else "30"), word.lower())
        for tweet in tweets
        for word in tweet["text"].split()
    )
    wanted = sorted(key for key, n in counts.items() if n >= 100)
    assert sorted((row["window_start"].strftime("%Y-%m-%dT%H:%M:%S"), row["word"]) for row in rows) == wanted


@pytest.mark.parametrize("mode", MODES)
def test_hot_topics(example, mode, examples):
    rows = run_local(example("hot_topics"), mode=mode)["out"]
    counts: dict[tuple[int, str], int] = {}
    for line in (examples / "data" / "tweets.jsonl").read_text().splitlines():
        tweet = json.loads(line)
        second = int(tweet["ts"][14:16]) * 60 + int(tweet["ts"][17:19])
        for word in tweet["text"].split():
            if word.startswith("#"):
                for end in range(second + 1, second + 11):
                    counts[end, word[1:].lower()] = counts.get((end, word[1:].lower()), 0) + 1
    hot = {key: n for key, n in counts.items() if n > 100}
    found = {(row["window_end"].minute * 60 + row["window_end"].second, row["tag"]): row["n"] for row in rows}
    assert found == hot
    assert {tag for _, tag in found} == {"eclipse", "python", "spark"}


def _means(trades: Trades, size_s: int, slide_s: int) -> dict[tuple[int, str], float]:
    """Mean prices by window end and symbol."""
    made = windows_of(trades, size_s, slide_s)
    names = symbol_names().take(pa.array(made.symbols)).to_pylist()
    return dict(zip(zip(made.ends_s.tolist(), names), (made.cents / made.trades).tolist()))


@pytest.mark.parametrize("mode", MODES)
def test_moving_average(example, mode):
    rows = run_local(example("moving_average"), mode=mode)["out"]
    found = {(row["window_end"].timestamp(), row["symbol"]): row["cents"] for row in rows}
    assert len(found) == len(rows)
    assert found == _means(Trades(30), 10, 1)


@pytest.mark.parametrize("mode", MODES)
def test_macd(example, mode):
    rows = run_local(example("macd"), mode=mode)["out"]
    found = {(row["window_end"].timestamp(), row["symbol"]): row["macd"] for row in rows}
    assert len(found) == len(rows)
    slow = _means(Trades(720), 600, 60)
    assert found == {key: mean - slow[key] for key, mean in _means(Trades(720), 300, 60).items()}


@pytest.mark.parametrize("mode", MODES)
def test_figure_one(example, mode):
    rows = run_local(example("figure_one"), mode=mode)
    assert sorted(row["n"] for row in rows["out-c"]) == list(range(10_000))
    assert sorted(row["n"] for row in rows["out-e"]) == list(range(2_000))
    assert {len(row["value"]) for row in rows["out-c"]} == {50}
    assert {len(row["value"]) for row in rows["out-e"]} == {100}


@pytest.mark.parametrize("mode", MODES)
def test_unpaid_orders(example, mode):
    rows = run_local(example("unpaid_orders"), mode=mode)["out"]
    assert sorted((row["order"], row["status"], row["euro"], row["at"].minute) for row in rows) == [
        (1001, "paid", 0, 3),
        (1002, "unpaid", 35, 11),
        (1003, "paid", 0, 9),
        (1004, "unpaid", 80, 16),
        (1005, "paid", 0, 15),
        (1006, "unpaid", 9, 40),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_dead_letters(example, published, tmp_path, mode):
    rows = run_local(example("dead_letters"), mode=mode)["out"]
    assert sorted((row["item"], row["orders"], round(row["mean"], 3)) for row in rows) == [
        ("apples", 2, 0.55),
        ("bread", 1, 2.8),
        ("pears", 2, 0.625),
    ]
    letters = published(tmp_path / "out/dead-letters/dead")
    assert sorted((letter["step"], letter["reason"].partition(":")[0]) for letter in letters)[2] == (
        "price",
        "ZeroDivisionError",
    )
    assert [letter["step"] for letter in letters].count("orders") == 2
    assert any("this line is not a record" in letter["record"] for letter in letters)


@pytest.mark.parametrize(("name", "places"), [("hot_topics", [""]), ("dead_letters", ["dead", "prices"])])
def test_results_go_to_the_same_place_each_time(example, tmp_path, name, places):
    """Or the example could not go on from its checkpoint."""
    plan = plan_job(example(name), tmp_path / "checkpoint", Settings.of())
    out = tmp_path / "out" / name.replace("_", "-")
    assert sorted(identity(plan).sinks.values()) == [str(out / place) for place in places]
