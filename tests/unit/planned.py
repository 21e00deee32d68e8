"""Small jobs with constraints, planned but not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import headrace as hr
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.runtime.plan import JobPlan


def numbers(n: Any) -> dict[str, Any]:
    return {"n": n, "key": n % 100}


def double(record: dict[str, Any]) -> dict[str, Any]:
    return {"key": record["key"], "n": 2 * record["n"]}


def count_up(record: dict[str, Any], state: Any, out: Any) -> None:
    out({"key": record["key"], "n": record["n"]})


def planned(rate: Any = "2000/s", *, parallelism: Any = (1, 2, 6), bounds: Any = None, **settings: Any) -> JobPlan:
    """Source → double → shuffle → count → sink, with each of ``bounds`` from source to sink."""
    job = hr.Job("planned")
    read = job.source("read", hr.generate(numbers, rate=rate))
    doubled = read.map(double, name="double")
    count = doubled.key_by("key").process(count_up, name="count", state={}, parallelism=parallelism)
    end = count.sink("out", hr.callback(print))
    for bound in bounds if bounds is not None else ({"p99": "60 ms"},):
        job.constrain(read >> end, **bound)
    return plan_job(job, Path("nowhere"), Settings.of(**settings))
