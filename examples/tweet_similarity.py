"""Similar tweets: for each location, the pair of tweets of the last second that shares most words.

Every tweet is compared with all in its location's window, the last hundred: what it costs grows with the window.

headrace run examples/tweet_similarity.py
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import headrace as hr
from headrace.bench.elasticity.documents import Messages

WINDOW = 100


def compare(tweet: hr.Record, state: Any, out: Callable[[hr.Record], None]) -> None:
    """Find the tweet of the window that shares most words; remember the best pair of the second."""
    words, window, pairs = set(tweet["text"].split()), state["window"], state["pairs"]
    shared, other = 0, None
    for number, text in window:
        if (n := len(words.intersection(text.split()))) > shared:
            shared, other = n, number
    window.append((tweet["number"], tweet["text"]))
    if len(window) > WINDOW:
        window.popleft()
    second = tweet["at"] // 1000
    best = pairs.get(second)
    if shared > (best[0] if best else 0):
        pairs.set(second, (shared, tweet["number"], other))
        if best is None:
            state.timer(at=datetime.fromtimestamp(second + 1, UTC), tag=str(second))


def tell(timer: Any, state: Any, out: Callable[[hr.Record], None]) -> None:
    """A second is over: its best pair."""
    second = int(timer.tag)
    shared, number, other = state["pairs"].get(second)
    state["pairs"].delete(second)
    out({"location": timer.key, "second": second, "tweet": number, "like": other, "shared": shared})


def program(tweets: hr.Source) -> hr.Job:
    """The job over some tweets; those of a location have to come in order, from one partition."""
    job = hr.Job("tweet-similarity")
    columns = ("location", "second", "tweet", "like", "shared")
    placed = job.source("tweets", tweets, event_time="at", time_unit="ms").key_by("location")
    similar = placed.process(
        compare,
        on_timer=tell,
        name="similar",
        state={"window": hr.queue(), "pairs": hr.mapping()},
        returns=dict.fromkeys(columns, "int64"),
    )
    similar.sink("out", hr.console(limit=10))
    return job


job = program(hr.generate(Messages(), total=4000, partitions=1))

if __name__ == "__main__":
    hr.run(job)
