"""Reading Spark's checkpoint: which epochs are committed, where the epoch clock stands."""

from __future__ import annotations

import json
from pathlib import Path


def committed(spark_checkpoint: Path, epoch: int) -> bool:
    """Whether Spark's commit log has the epoch: the moment that decides."""
    return (spark_checkpoint / "commits" / str(epoch)).exists()


def last_committed(spark_checkpoint: Path) -> int | None:
    directory = spark_checkpoint / "commits"
    if not directory.is_dir():
        return None
    epochs = [int(p.name) for p in directory.iterdir() if p.name.isdigit()]
    return max(epochs, default=None)


def clock_offset(spark_checkpoint: Path) -> int:
    """How many records of the epoch clock the offset log has seen, per partition."""
    directory = spark_checkpoint / "offsets"
    if not directory.is_dir():
        return 0
    epochs = sorted(int(p.name) for p in directory.iterdir() if p.name.isdigit())
    if not epochs:
        return 0
    last = (directory / str(epochs[-1])).read_text().strip().splitlines()[-1]
    try:
        return max((int(n) for n in json.loads(last).values()), default=0)
    except (ValueError, AttributeError, TypeError):
        return 0
