"""Frequent users: who has clicked fifty times, told as soon as it is so, in a megabyte of memory.

headrace run examples/frequent_users.py --mode batch
"""

from typing import Any

import numpy as np
import numpy.typing as npt

import headrace as hr


def clicks(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    """The clicks with these numbers: some of forty thousand users click far more often than others."""
    chance = (numbers * 2_654_435_761 % 1_000_003) / 1_000_003
    return {"user": (40_000 * chance**5).astype(np.int64), "at": numbers}


job = hr.Job("frequent-users")

(
    job.source("clicks", hr.generate(clicks, total=100_000))
    .key_by("user")
    .window(hr.whole_input())
    .reduce(
        name="frequent",
        state=hr.keep(memory="1 MB", engine="dinc"),
        emit=hr.at_least(clicks=50),
        clicks=hr.count(),
    )
    .sink("out", hr.console(limit=10))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
