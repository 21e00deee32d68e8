"""Unpaid orders: state and a timer per order, which payments in time cancel.

headrace run examples/unpaid_orders.py --mode batch
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import headrace as hr

HERE = Path(__file__).parent
IN_TIME = timedelta(minutes=10)
Out = Callable[[hr.Record], None]


def follow(event: hr.Record, state: Any, out: Out) -> None:
    """Called for each event, with what its order has in state."""
    if event["what"] == "ordered":
        due = state.time + IN_TIME
        state["open"].set(event["euro"])
        state["due"].set(due)
        state.timer(at=due, tag="reminder")
        return
    left = state["open"].get()
    if left is None or state.time >= state["due"].get():
        return  # too late: the reminder was sent, or will be
    if event["euro"] < left:
        state["open"].set(left - event["euro"])
        return
    state["open"].delete()
    state.cancel("reminder")
    out({"order": event["order"], "status": "paid", "euro": 0, "at": state.time})


def remind(timer: Any, state: Any, out: Out) -> None:
    """Called when ten minutes have passed, by the events' own time, unless the timer was cancelled."""
    out({"order": timer.key, "status": "unpaid", "euro": state["open"].get(), "at": timer.at})
    state["open"].delete()


job = hr.Job("unpaid-orders")

events = job.source("events", hr.replay(HERE / "data/shop.csv"), event_time="at", lateness="1 min")

orders = events.key_by("order").process(
    follow,
    on_timer=remind,
    state={"open": hr.value(), "due": hr.value()},
    name="orders",
    returns={"order": "int64", "status": "string", "euro": "int64", "at": "timestamp[us, UTC]"},
)

orders.sink("out", hr.console())

if __name__ == "__main__":
    hr.run(job, mode="batch")
