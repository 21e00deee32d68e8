"""The three jobs of a first hour: sessions and top pages, orders and payments with timers, a DataFrame job that is ported."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import Result

import headrace as hr
from headrace.testing import run_local

Rows = list[dict[str, Any]]


@pytest.fixture(params=["realtime", "microbatch", "batch"])
def mode(request: pytest.FixtureRequest) -> Any:
    return request.param


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-03-02T{clock}Z")


def ordered(rows: Rows, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[column] for column in columns) for row in rows)


# Sessions, and the pages that were seen most in each hour.


def sessions_and_top_pages() -> hr.Job:
    job = hr.Job("sessions")
    visits = job.source("visits", hr.replay("visits.csv"), event_time="at", lateness="10 min")
    sessions = (
        visits.key_by("user")
        .window(hr.session_window("30 min"))
        .reduce(name="sessions", pages=hr.count(), seconds=hr.sum("seconds"), path=hr.collect_list("page"))
    )
    sessions.sink("sessions-out", hr.jsonl("out/sessions"))
    views = visits.key_by("page").window(hr.tumbling("1 h")).reduce(name="views", n=hr.count())
    by_hour = views.map(lambda row: {"hour": row["window_start"], "page": row["page"], "n": row["n"]}, name="by-hour")
    top = by_hour.key_by("hour").window(hr.tumbling("1 h")).reduce(name="top", pages=hr.top_k("page", 1, by="n"))
    top.sink("top-out", hr.jsonl("out/top"))
    return job


def test_sessions_and_top_pages(here: Path, mode: Any) -> None:
    rows = run_local(sessions_and_top_pages(), mode=mode)
    assert ordered(rows["sessions-out"], "user", "window_start", "pages", "seconds", "path") == [
        ("ann", at("09:00:00"), 2, 53, ["home", "search"]),
        ("ann", at("10:00:00"), 2, 93, ["cart", "home"]),
        ("bob", at("09:01:00"), 1, 30, ["search"]),
        ("bob", at("09:45:00"), 1, 5, ["home"]),
        ("cat", at("10:01:00"), 2, 28, ["cart", "cart"]),
    ]
    tops = {row["hour"]: row["pages"] for row in rows["top-out"]}
    assert tops[at("10:00:00")] == ["cart"] and tops[at("09:00:00")] in (["home"], ["search"])


# Orders and payments: as a join by interval, and by hand with state and a timer. Both say the same.


def joined_orders() -> hr.Job:
    job = hr.Job("orders")
    orders = job.source("orders", hr.replay("orders.jsonl"), event_time="at", lateness="1 min")
    payments = job.source("payments", hr.replay("payments.jsonl"), event_time="at", lateness="1 min")
    both = orders.key_by("order").join(payments.key_by("order"), after="10 min", how="full", name="both")
    both.sink("out", hr.jsonl("out"))
    return job


def test_orders_meet_payments_or_stay_alone(here: Path, mode: Any) -> None:
    rows = run_local(joined_orders(), mode=mode)["out"]
    found = sorted((row["order"], row["amount"] is not None, row["paid"] is not None) for row in rows)
    assert found == [
        ("o-1", True, True),
        ("o-2", False, True),  # it came 20 s too late,
        ("o-2", True, False),  # so both stay alone
        ("o-3", True, True),  # on the border
        ("o-4", True, False),
        ("o-9", False, True),
    ]


def followed_orders() -> hr.Job:
    def follow(event: hr.Record, state: Any, out: Callable[[hr.Record], None]) -> None:
        """Either may come first: they are read from two files at the same time."""
        state["ordered" if event["amount"] is not None else "paid"].set(state.time)
        ordered, paid = state["ordered"].get(), state["paid"].get()
        if ordered is not None and paid is not None and ordered <= paid <= ordered + timedelta(minutes=10):
            state.cancel("reminder")
            out({"order": event["order"], "paid": True})
        elif event["amount"] is not None:
            state.timer(after="10 min", tag="reminder")

    def remind(timer: Any, state: Any, out: Callable[[hr.Record], None]) -> None:
        out({"order": timer.key, "paid": False})
        state["ordered"].delete()

    events = {"order": "string", "amount": "int64", "at": "string"}
    job = hr.Job("followed")
    orders = job.source("orders", hr.replay("orders.jsonl", schema=events), event_time="at", lateness="10 min")
    payments = job.source("payments", hr.replay("payments.jsonl", schema=events), event_time="at", lateness="10 min")
    orders.union(payments, name="events").key_by("order").process(
        follow, on_timer=remind, state={"ordered": hr.value(), "paid": hr.value(ttl="1 day")}, name="follow",
        returns={"order": "string", "paid": "bool"},
    ).sink("out", hr.jsonl("out"))  # fmt: skip
    return job


def test_timers_find_the_same_unpaid_orders(here: Path, mode: Any) -> None:
    rows = run_local(followed_orders(), mode=mode, seed=1)["out"]
    alone = {row["order"] for row in run_local(joined_orders(), mode=mode)["out"] if row["paid"] is None}
    assert {row["order"] for row in rows if not row["paid"]} == alone == {"o-2", "o-4"}
    assert {row["order"] for row in rows if row["paid"]} == {"o-1", "o-3"}


# A job that was written for DataFrames: groupBy(window, customer).agg(count, sum, avg, max).where("total > 30").

APP = """
import headrace as hr

job = hr.Job("ported")
orders = job.source("orders", hr.replay("orders.jsonl"), event_time="at", lateness="1 min")
per_minute = (
    orders.key_by("customer")
    .window(hr.tumbling("1 min"))
    .reduce(name="per-minute", n=hr.count(), total=hr.sum("amount"), mean=hr.mean("amount"), most=hr.max("amount"))
)
per_minute.filter(lambda row: row["total"] > 30, name="large").sink("out", hr.jsonl("out"))
"""


def test_a_ported_job_has_the_answers_of_the_dataframe(here: Path, mode: Any) -> None:
    names: dict[str, Any] = {}
    exec(APP, names)
    rows = run_local(names["job"], mode=mode)["out"]
    table = pa.Table.from_pylist([json.loads(line) for line in Path("orders.jsonl").read_text().splitlines()])
    minutes = [datetime.fromisoformat(when).replace(second=0) for when in table["at"].to_pylist()]
    grouped = table.append_column("minute", pa.array(minutes, pa.timestamp("us", "UTC"))).group_by(
        ["customer", "minute"]
    )
    wanted = grouped.aggregate([("amount", "count"), ("amount", "sum"), ("amount", "mean"), ("amount", "max")])
    columns = ("customer", "minute", "amount_count", "amount_sum", "amount_mean", "amount_max")
    large = [row for row in wanted.to_pylist() if row["amount_sum"] > 30]
    found = ordered(rows, "customer", "window_start", "n", "total", "mean", "most")
    assert found == ordered(large, *columns) and len(found) == 3
    assert all(row["window_end"] - row["window_start"] == timedelta(minutes=1) for row in rows)
    assert all(row["window_start"].tzinfo is UTC or row["window_start"].utcoffset() == timedelta(0) for row in rows)


def test_what_a_ported_job_will_do_is_explained_before_it_runs(headrace: Callable[..., Result], here: Path) -> None:
    (here / "app.py").write_text(APP)
    told = headrace("explain", "app.py")
    assert told.exit_code == 0
    assert "per-minute: reduce by customer over tumbling 60 s: n=count(), total=sum(amount)" in told.output
    waits = "its rows come when their window ends, up to 1 min after a record, and 1 min more, as far out of order as"
    assert f"per-minute: {waits} records may be." in told.output
