"""Click count: clicks per page and minute, from a generator with a steady rate.

headrace run examples/click_count.py --seconds 10
headrace run examples/click_count.py --mode batch
"""

from typing import Any

import numpy as np
import numpy.typing as npt

import headrace as hr

PAGES = np.array(["home", "search", "cart", "help"])
START_MS = 1_700_000_040_000


def clicks(numbers: npt.NDArray[np.int64]) -> dict[str, Any]:
    """The clicks with these numbers: a tenth of a second apart, most of them on the first pages."""
    return {"page": PAGES[(numbers * 7 % 10) // 3], "at": START_MS + numbers * 100}


job = hr.Job("click-count")

(
    job.source("clicks", hr.generate(clicks, rate="3000/s", total=3000), event_time="at")
    .key_by("page")
    .window(hr.tumbling("1 min"))
    .reduce(name="per-page", n=hr.count())
    .sink("out", hr.console())
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
