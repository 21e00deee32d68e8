"""Trigrams: three words in a row that occur more than once; most occur once, so memory holds a few of them.

headrace run examples/trigrams.py --mode batch
"""

from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent


def trigrams(record: hr.Record) -> list[hr.Record]:
    """Every three words in a row of a line."""
    words = [word.strip(".,;:!?'\"") for word in record["line"].lower().split()]
    return [{"trigram": " ".join(three)} for three in zip(words, words[1:], words[2:])]


job = hr.Job("trigrams")

(
    job.source("lines", hr.replay(HERE / "data/mill.txt", format="lines"))
    .flat_map(trigrams, name="trigrams")
    .key_by("trigram")
    .window(hr.whole_input())
    .reduce(name="count", state=hr.keep(memory="100 KB"), emit=hr.at_least(n=2), n=hr.count())
    .sink("out", hr.console(limit=10))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
