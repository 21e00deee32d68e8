"""Inverted index, as a MapReduce program would write it: for each tag the users who wrote it.

The same program over stored tweets, and over the last ten seconds of a stream of them, each five seconds:

headrace run examples/tag_index.py:job --mode batch
headrace run examples/tag_index.py:live
headrace run examples/tag_index.py:job,live
"""

from collections.abc import Iterator
from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent


def tags(record: hr.Record) -> Iterator[tuple[str, list[str]]]:
    """Each tag of a tweet with its user."""
    for word in record["text"].split():
        if word.startswith("#"):
            yield word[1:].lower(), [record["user"]]


def united(tag: str, lists: list[list[str]]) -> list[str]:
    """All users of some lists, each once, in order."""
    return sorted({user for users in lists for user in users})


def program(name: str, window: hr.Window | None = None) -> hr.Job:
    """The program as a job; in windows of event time, or over the whole input."""
    job = hr.Job(name)
    tweets = job.source("tweets", hr.replay(HERE / "data/tweets.jsonl", rate="1000/s"), event_time="ts", lateness="1 s")
    index = job.map_reduce("index", inputs=[tweets], map=tags, combine=united, reduce=united, window=window)
    index.sink("out", hr.console(limit=3))
    return job


job = program("tag-index")
live = program("tag-index-live", hr.sliding("10 s", every="5 s"))

if __name__ == "__main__":
    hr.run(job, mode="batch")
