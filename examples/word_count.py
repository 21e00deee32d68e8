"""Word count, as a MapReduce program would write it: map, combine, reduce. Runs in batch mode.

python examples/word_count.py
headrace run examples/word_count.py --mode batch
"""

from collections.abc import Iterator
from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent


def to_words(record: hr.Record) -> Iterator[tuple[str, int]]:
    """Each word with the number one."""
    for word in record["line"].lower().split():
        yield word.strip(".,;:!?'\""), 1


def add(word: str, counts: list[int]) -> int:
    """How often a word occurred, given how often it occurred here and there."""
    return sum(counts)


job = hr.Job("word-count")

lines = job.source("lines", hr.replay(HERE / "data/mill.txt", format="lines"))

counts = job.map_reduce("words", inputs=[lines], map=to_words, combine=add, reduce=add)

counts.sink("out", hr.console(limit=10))

if __name__ == "__main__":
    for row in sorted(hr.collect(job), key=lambda row: -row["value"])[:10]:
        print(row["value"], row["key"])
