"""Hot topics: hashtags counted over sliding windows, with a bound on how late a count may be.

headrace explain examples/hot_topics.py
headrace run examples/hot_topics.py --checkpoint checkpoints/hot-topics
python examples/hot_topics.py

Stop it, and start it again: it goes on where it was. To start anew, remove both the checkpoint and the results.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import headrace as hr

HERE = Path(__file__).parent
OUT = Path("out/hot-topics")


def split_tags(tweet: hr.Record) -> list[hr.Record]:
    """One record per hashtag."""
    words = tweet["text"].split()
    return [{"tag": word[1:], "likes": tweet["likes"], "ts": tweet["ts"]} for word in words if word.startswith("#")]


def enrich(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Tags in lower case; a whole Arrow batch at a time."""
    return batch.set_column(0, "tag", pc.utf8_lower(batch.column("tag")))


job = hr.Job("hot-topics")

tweets = job.source("tweets", hr.replay(HERE / "data/tweets.jsonl", rate="1000/s"), event_time="ts", lateness="1 s")

tags = tweets.flat_map(split_tags, name="split").map_batch(enrich, name="enrich")

hot = tags.key_by("tag").window(hr.sliding("10 s", every="1 s")).reduce(name="hot", n=hr.count(), likes=hr.sum("likes"))

hot.filter(lambda row: row["n"] > 100, name="trending").sink("out", hr.jsonl(OUT))

job.constrain(tweets >> hot, mean="30 ms", over="5 s")
job.constrain(tweets >> hot, p99="100 ms", over="10 s")

if __name__ == "__main__":
    hr.run(job, checkpoint="checkpoints/hot-topics")
    print(f"trending topics are in {OUT}")
