"""Windowed word count: words of tweets that are seen a hundred times within thirty seconds, told at once.

headrace run examples/windowed_words.py
"""

from pathlib import Path

import headrace as hr

HERE = Path(__file__).parent


def words(record: hr.Record) -> list[hr.Record]:
    """A tweet's words, in lower case."""
    return [{"word": word.lower()} for word in record["text"].split()]


job = hr.Job("windowed-words")

(
    job.source("tweets", hr.replay(HERE / "data/tweets.jsonl"), event_time="ts")
    .flat_map(words, name="words")
    .key_by("word")
    .window(hr.tumbling("30 s"))
    .reduce(name="count", emit=hr.at_least(n=100), n=hr.count())
    .sink("out", hr.console(limit=10))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
