"""What the workers of a real Spark run measure, as the driver has it."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.measure.moments import merge
from headrace.measure.recent import Recent
from headrace.measure.sketches import merged

TOTAL, READING_S = 6000, 0.003


def _numbered(numbers: Any) -> dict[str, Any]:
    time.sleep(READING_S)  # more than the error of the means: whole trips show it if no part has it
    return {"k": np.asarray(numbers) % 11, "v": np.asarray(numbers)}


# latency-guarantees fact 5: whole trips of tagged records agree with the sum of the elements; facts 3 and 10
def test_the_driver_has_figures_of_every_step_and_channel(spark: Any) -> None:
    job = hr.Job("measured")
    source = job.source("src", hr.generate(_numbered, rate=2000, total=TOTAL))
    mapped = source.map_batch(lambda batch: batch, name="first")
    mapped.key_by("k").process(lambda r, state, emit: emit(r), name="work").sink("sink", hr.callback(lambda rows: None))
    run = hr.start(job, spark=spark, parallelism=2, report="500 ms", sample_share=1.0)
    status = run.status()
    try:
        while not run.wait(0.1):  # figures are of now: at the end there are none any more
            status = max(run.status(), status, key=lambda seen: len(seen.channels))
    finally:
        run.delete_temporary_checkpoint()
    heard, latency = run.reports(), run.latency()
    assert latency.keys() == {"first", "work", "sink"} and all(figures.n == TOTAL for figures in latency.values())
    assert status.steps.keys() == {"src", "first", "work", "sink"} and status.steps["src"].latency_ms is None
    assert len(status.channels) == 4, "two senders to two receivers"
    reports = [h.report for h in heard]
    assert len({(r.worker, r.at_s) for r in reports}) == len(reports)
    recent = Recent(1e9).add(reports, max(r.at_s for r in reports))
    (edge,) = status.edges
    parts = recent.edge_parts_ms(edge, 0.0)
    assert parts is not None
    steps = [recent.step_latency_ms(step, 0.0) or math.nan for step in ("first", "work", "sink")]
    ages = {
        step: merged(f.latency for h in heard for f in h.flows if f.step == step and f.latency is not None)
        for step in ("first", "sink")
    }
    buffers = merge(c.lifetime_ms for r in reports for c in r.channels)
    assert buffers is not None
    tags = buffers.n / 2  # what goes to both receivers at once has one
    error_ms = math.sqrt(sum(a.moments.variance for a in ages.values()) / tags)
    together_ms = parts.total_ms + math.fsum(steps)  # what the source let wait counts with the buffer
    assert ages["sink"].mean_ms == pytest.approx(together_ms, abs=4 * error_ms)
