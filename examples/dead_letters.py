"""Dead letters: bad input and failing records go to a sink of their own, and the job goes on.

headrace run examples/dead_letters.py --mode batch --checkpoint checkpoints/dead-letters
"""

from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent
OUT = Path("out/dead-letters")


def price(order: hr.Record) -> hr.Record:
    """The price of one piece; an order of nothing has none, and raises."""
    return {"item": order["item"], "each": order["total"] / order["pieces"]}


job = hr.Job("dead-letters", dead_letter=hr.jsonl(OUT / "dead"))

orders = job.source(
    "orders", hr.replay(HERE / "data/orders.jsonl", schema={"item": "string", "pieces": "int64", "total": "float64"})
)

prices = orders.map(price, name="price").key_by("item").window(hr.whole_input())

prices.reduce(name="prices", mean=hr.mean("each"), orders=hr.count()).sink("out", hr.jsonl(OUT / "prices"))

if __name__ == "__main__":
    hr.run(job, mode="batch", checkpoint="checkpoints/dead-letters")
    for path in sorted(OUT.glob("*/part-*.jsonl")):
        print(f"{path}:\n{path.read_text()}", end="")
