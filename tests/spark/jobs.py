"""Ten jobs that every mode must answer alike, with answers from plain Python."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import headrace as hr
from headrace.testing import scripted

Rows = list[dict[str, Any]]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def records(n: int, *, part: int = 0) -> Rows:
    """Clicks in order of time: user, page, price, ts in ms."""
    return [
        {"user": f"u{(i * 7 + part) % 11}", "page": f"p{(i * 13 + part) % 5}", "price": (i * 37) % 101, "ts": i * 50}
        for i in range(part, n, 2)
    ]


PARTS = (records(400), records(400, part=1))
ALL = [r for part in PARTS for r in part]


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _clicks(job: hr.Job, **options: Any) -> hr.Stream:
    return job.source("clicks", scripted(*PARTS), **{"event_time": "ts", **options})


def tumbling_count() -> tuple[hr.Job, Rows]:
    job = hr.Job("tumbling-count")
    _clicks(job).key_by("page").window(hr.tumbling("2 s")).reduce(name="n", n=hr.count(), total=hr.sum("price"))
    groups: dict[Any, Rows] = defaultdict(list)
    for r in ALL:
        groups[r["page"], r["ts"] // 2000].append(r)
    return job, [
        {"page": p, "window_start": at(w * 2000), "window_end": at(w * 2000 + 2000), "n": len(g), "total": sum(r["price"] for r in g)}
        for (p, w), g in groups.items()
    ]  # fmt: skip


def sliding_stats() -> tuple[hr.Job, Rows]:
    job = hr.Job("sliding-stats")
    _clicks(job).key_by("user").window(hr.sliding("3 s", every="1 s")).reduce(
        name="stats", low=hr.min("price"), high=hr.max("price"), first=hr.first("price"), last=hr.last("price")
    )
    groups: dict[Any, Rows] = defaultdict(list)
    for r in sorted(ALL, key=lambda r: r["ts"]):
        for k in range(r["ts"] // 1000 + 1, (r["ts"] + 3000) // 1000 + 1):
            groups[r["user"], k * 1000].append(r)
    return job, [
        {
            "user": u, "window_start": at(e - 3000), "window_end": at(e), "low": min(r["price"] for r in g),
            "high": max(r["price"] for r in g), "first": g[0]["price"], "last": g[-1]["price"],
        }
        for (u, e), g in groups.items()
    ]  # fmt: skip


def sessions() -> tuple[hr.Job, Rows]:
    """Only clicks whose price is in a table, which a function reads that could not be shipped to workers."""
    job, lock = hr.Job("sessions"), threading.Lock()

    def prices() -> Rows:
        with lock:
            return [{"price": price, "third": price // 3} for price in range(0, 101, 3)]

    _clicks(job).lookup(hr.table(prices, key="price"), name="some").key_by("user").window(
        hr.session_window("500 ms")
    ).reduce(name="visits", clicks=hr.count(), pages=hr.count_distinct("page"))
    by_user: dict[str, Rows] = defaultdict(list)
    for r in sorted(ALL, key=lambda r: r["ts"]):
        if r["price"] % 3 == 0:
            by_user[r["user"]].append(r)
    expected = []
    for user, rows in by_user.items():
        runs = [[rows[0]]]
        for r in rows[1:]:
            if r["ts"] - runs[-1][-1]["ts"] >= 500:
                runs.append([])
            runs[-1].append(r)
        expected += [
            {
                "user": user, "window_start": at(run[0]["ts"]), "window_end": at(run[-1]["ts"] + 500),
                "clicks": len(run), "pages": len({r["page"] for r in run}),
            }
            for run in runs
        ]  # fmt: skip
    return job, expected


def joined() -> tuple[hr.Job, Rows]:
    job = hr.Job("joined")
    clicks = _clicks(job)
    views = clicks.filter(lambda r: r["price"] < 40, name="views")
    buys = clicks.filter(lambda r: r["price"] >= 80, name="buys").map(
        lambda r: {"user": r["user"], "paid": r["price"]}, name="paid"
    )
    views.key_by("user").window(hr.tumbling("4 s")).join(buys.key_by("user"), name="both", how="left")
    expected = []
    for v in ALL:
        if v["price"] < 40:
            w = v["ts"] // 4000
            paid = [b["price"] for b in ALL if b["price"] >= 80 and b["user"] == v["user"] and b["ts"] // 4000 == w]
            expected += [
                {**v, "paid": p, "window_start": at(w * 4000), "window_end": at(w * 4000 + 4000)}
                for p in paid or [None]
            ]
    return job, expected


def near() -> tuple[hr.Job, Rows]:
    """Views and what the same user bought in the two seconds after, also across the borders of any window."""
    job = hr.Job("near")
    clicks = _clicks(job)
    views = clicks.filter(lambda r: r["price"] < 40, name="views")
    buys = clicks.filter(lambda r: r["price"] >= 80, name="buys").map(
        lambda r: {"user": r["user"], "paid": r["price"], "ts": r["ts"]}, name="paid"
    )
    views.key_by("user").join(buys.key_by("user"), after="2 s", how="left", name="both").sink("out", hr.rows())
    expected = []
    for v in ALL:
        if v["price"] < 40:
            bought = [b for b in ALL if b["price"] >= 80 and b["user"] == v["user"] and 0 <= b["ts"] - v["ts"] <= 2000]
            expected += [{**v, "paid": b["price"], "ts_right": b["ts"]} for b in bought]
            expected += [] if bought else [{**v, "paid": None, "ts_right": None}]
    return job, expected


def late_data() -> tuple[hr.Job, Rows]:
    """Every tenth record is three seconds old: too late for its window or not, decided at the source."""
    rows = [{"k": i % 3, "ts": (i * 100 - (3000 if i % 10 == 9 else 0)) % 10**9} for i in range(40, 300)]
    job = hr.Job("late-data")
    source = job.source("events", scripted(rows), event_time="ts", lateness="1 s")
    source.key_by("k").window(hr.tumbling("2 s")).reduce(name="n", n=hr.count())
    groups: Counter[tuple[int, int]] = Counter()
    newest = -(10**18)
    for r in rows:
        end = (r["ts"] // 2000 + 1) * 2000
        if end > newest - 1000:
            groups[r["k"], end] += 1
        newest = max(newest, r["ts"])
    return job, [{"k": k, "window_start": at(e - 2000), "window_end": at(e), "n": n} for (k, e), n in groups.items()]


def fan_out() -> tuple[hr.Job, Rows]:
    """One source, two windows, their results united and counted again; one edge skips a stage."""
    job = hr.Job("fan-out")
    clicks = _clicks(job)
    short = clicks.key_by("page").window(hr.tumbling("1 s")).reduce(name="short", n=hr.count())
    long = clicks.key_by("page").window(hr.tumbling("5 s")).reduce(name="long", n=hr.count())
    short.union(long, name="all").key_by("page").window(hr.tumbling("10 s")).reduce(
        name="total", rows=hr.count(), n=hr.sum("n")
    )
    groups: dict[Any, list[int]] = defaultdict(list)
    for size in (1000, 5000):
        counts = Counter((r["page"], r["ts"] // size) for r in ALL)
        for (page, w), n in counts.items():
            groups[page, (w * size + size - 1) // 10_000].append(n)
    return job, [
        {"page": p, "window_start": at(w * 10_000), "window_end": at(w * 10_000 + 10_000), "rows": len(ns), "n": sum(ns)}
        for (p, w), ns in groups.items()
    ]  # fmt: skip


def user_reducer() -> tuple[hr.Job, Rows]:
    job = hr.Job("user-reducer")
    spread = hr.reducer(
        init=lambda: [10**9, -(10**9)],
        update=lambda s, r: [min(s[0], r["price"]), max(s[1], r["price"])],
        combine=lambda a, b: [min(a[0], b[0]), max(a[1], b[1])],
        finalize=lambda s: s[1] - s[0],
    )
    longest = hr.reducer(init=str, update=lambda s, r: max(s, r["page"] * (r["price"] % 4), key=lambda t: (len(t), t)))
    keyed = _clicks(job).key_by("user")
    keyed.window(hr.tumbling("4 s")).reduce(name="spread", spread=spread)
    keyed.window(hr.sliding("4 s", every="2 s")).reduce(name="longest", longest=longest)
    groups: dict[Any, list[int]] = defaultdict(list)
    for r in ALL:
        groups[r["user"], r["ts"] // 4000].append(r["price"])
    return job, [
        {"user": u, "window_start": at(w * 4000), "window_end": at(w * 4000 + 4000), "spread": max(g) - min(g)}
        for (u, w), g in groups.items()
    ]


def word_count() -> tuple[hr.Job, Rows]:
    job = hr.Job("word-count")
    lines = [{"line": f"the {w} and the {w * 2}"} for w in "abcabcaab"]
    job.map_reduce(
        "words",
        inputs=[job.source("lines", scripted(lines[:5], lines[5:]))],
        map=lambda r: [(word, 1) for word in r["line"].split()],
        combine=lambda key, values: sum(values),
        reduce=lambda key, values: sum(values),
    )
    counts = Counter(word for r in lines for word in r["line"].split())
    return job, [{"key": k, "value": n} for k, n in counts.items()]


def keyed_process() -> tuple[hr.Job, Rows]:
    """Per user: pages seen for the first time, and a summary when two seconds have passed."""

    def seen(record: dict[str, Any], state: Any, out: Any) -> None:
        if record["page"] not in state["pages"]:
            state["pages"].set(record["page"], record["ts"])
            state["order"].append(record["page"])
            state["n"].set(state["n"].get(0) + 1)

    def summary(timer: Any, state: Any, out: Any) -> None:
        raise AssertionError("no timer was set")

    job = hr.Job("keyed-process")
    clicks = job.source("clicks", scripted(sorted(ALL, key=lambda r: r["ts"])), event_time="ts")

    def process(record: dict[str, Any], state: Any, out: Any) -> None:
        seen(record, state, out)
        if state["n"].get() == 5 and not state["done"].get(False):
            state["done"].set(True)
            state.timer(after="2 s", tag="tell")

    def tell(timer: Any, state: Any, out: Any) -> None:
        out({"user": timer.key, "order": list(state["order"]), "at": timer.at})

    clicks.key_by("user").process(
        process,
        name="visit",
        on_timer=tell,
        state={"pages": hr.mapping(), "order": hr.queue(), "n": hr.value(), "done": hr.value()},
        returns={
            "user": "string",
            "order": __import__("pyarrow").list_(__import__("pyarrow").string()),
            "at": "timestamp",
        },
    )
    expected, pages = [], defaultdict(list)
    for r in sorted(ALL, key=lambda r: r["ts"]):
        if r["page"] not in pages[r["user"]]:
            pages[r["user"]].append(r["page"])
            if len(pages[r["user"]]) == 5:
                moment = (at(r["ts"]) + timedelta(seconds=2)).replace(tzinfo=None)
                expected.append({"user": r["user"], "order": list(pages[r["user"]]), "at": moment})
    return job, expected


def unchained_quantiles() -> tuple[hr.Job, Rows]:
    """A step in a process of its own, a count window, top-k and collect."""
    job = hr.Job("unchained")
    rows = [{"k": "ab"[i % 2], "v": (i * 31) % 17, "ts": i} for i in range(120)]
    doubled = job.source("rows", scripted(rows), event_time="ts").map(
        lambda r: {**r, "v": r["v"] * 2}, name="double", chain=False
    )
    doubled.key_by("k").window(hr.count_window(20)).reduce(name="per20", top=hr.top_k("v", 3), all=hr.collect_list("v"))
    expected = []
    for k in "ab":
        mine = [{**r, "v": r["v"] * 2} for r in rows if r["k"] == k]
        for i in range(0, 60, 20):
            values = [r["v"] for r in mine[i : i + 20]]
            expected.append({"k": k, "top": sorted(values, reverse=True)[:3], "all": values})
    return job, expected


JOBS: list[Callable[[], tuple[hr.Job, Rows]]] = [
    tumbling_count, sliding_stats, sessions, joined, late_data, fan_out, user_reducer, word_count, keyed_process,
    unchained_quantiles,
]  # fmt: skip


def canonical(rows: Rows) -> list[str]:
    """Rows as sorted text, so that lists can be compared as multisets."""

    def plain(value: Any) -> Any:
        return value.astimezone(UTC).isoformat() if isinstance(value, datetime) and value.tzinfo else str(value)

    return sorted(str(sorted((k, plain(v)) for k, v in row.items())) for row in rows)
