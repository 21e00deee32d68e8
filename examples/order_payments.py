"""Orders and their payments: paid within ten minutes, not paid by then, and payments that belong to no order.

headrace run examples/order_payments.py --mode batch
"""

from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent

job = hr.Job("order-payments")

orders = job.source("orders", hr.replay(HERE / "data/placed.jsonl"), event_time="at", lateness="10 s")
payments = job.source("payments", hr.replay(HERE / "data/paid.jsonl"), event_time="at", lateness="10 s")

# A pair comes as soon as the payment does. Whoever is left alone comes when time has passed: an order ten minutes after it
# was placed, a payment at once, as its order cannot come after it. Memory is bounded, however many orders are open.
both = orders.key_by("order").join(
    payments.key_by("order"), before="0 s", after="10 min", how="full", name="both", state=hr.keep(memory="64 MB")
)


def with_outcome(row: hr.Record) -> hr.Record:
    if row["paid"] is None:
        return {**row, "outcome": "not paid in time"}
    return {**row, "outcome": "paid" if row["amount"] is not None else "a payment without an order"}


outcomes = both.map(with_outcome, name="outcomes")
outcomes.filter(lambda row: row["outcome"] == "paid", name="paid").sink("paid-out", hr.console())
outcomes.filter(lambda row: row["outcome"] != "paid", name="unmatched").sink("unmatched-out", hr.console())

if __name__ == "__main__":
    hr.run(job, mode="batch")
