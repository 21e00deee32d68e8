"""One step of k-means, as a MapReduce program would write it: points go to the nearest centre, centres to their mean.

The same program over all points, and over each half minute of a stream of them:

headrace run examples/kmeans_step.py:job --mode batch
headrace run examples/kmeans_step.py:live
headrace run examples/kmeans_step.py:job,live
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import headrace as hr

PLACES = np.array([(1.0, 1.0), (5.0, 0.5), (0.5, 5.0)])
CENTRES = [(0.0, 0.0), (4.0, 0.0), (0.0, 4.0)]
START_MS = 1_700_000_040_000


def points(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    """The points with these numbers: around three places, a tenth of a second apart."""
    x, y = PLACES[numbers % 3].T
    return {"x": x + np.cos(numbers * 2.4), "y": y + np.sin(numbers * 2.4), "at": START_MS + 100 * numbers}


def nearest(record: hr.Record) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """The nearest centre, with the point as a sum of one."""
    distances = [math.dist(centre, (record["x"], record["y"])) for centre in CENTRES]
    yield distances.index(min(distances)), (record["x"], record["y"], 1.0)


def total(centre: int, sums: list[list[float]]) -> list[float]:
    """Sums of points as one."""
    return [sum(column) for column in zip(*sums)]


def moved(centre: int, sums: list[list[float]]) -> list[float]:
    """Where the centre moves to."""
    x, y, n = total(centre, sums)
    return [x / n, y / n]


def program(name: str, window: hr.Window | None = None) -> hr.Job:
    """The program as a job; in windows of event time, or over the whole input."""
    job = hr.Job(name)
    stream = job.source("points", hr.generate(points, rate="2000/s", total=2000), event_time="at")
    centres = job.map_reduce("centres", inputs=[stream], map=nearest, combine=total, reduce=moved, window=window)
    centres.sink("out", hr.console())
    return job


job = program("kmeans-step")
live = program("kmeans-step-live", hr.tumbling("30 s"))

if __name__ == "__main__":
    hr.run(job, mode="batch")
