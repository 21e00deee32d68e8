"""The controller of a real run: it acts, is overruled by hand, and loses nothing while subtasks come and chains move."""

from __future__ import annotations

from typing import Any

import numpy as np

import headrace as hr

TOTAL = 8000


def _numbered(numbers: Any) -> dict[str, Any]:
    return {"k": np.asarray(numbers) % 5, "v": np.asarray(numbers)}


# latency-guarantees facts 2, 29 and 32 on Spark: nothing is lost or doubled by new chains and other parallelism
def test_a_run_is_controlled_and_overruled(spark: Any) -> None:
    job = hr.Job("controlled")
    source = job.source("src", hr.generate(_numbered, rate=1000, total=TOTAL), parallelism=1)
    work = source.map_batch(lambda batch: batch, name="work", parallelism=(1, 1, 2))
    more = work.map_batch(lambda batch: batch, name="more")
    sums = more.key_by("k").window(hr.whole_input()).reduce(name="sums", n=hr.count(), v=hr.sum("v"))
    sums.sink("out", hr.rows())
    job.constrain(source >> more, mean="1 ms", over="2 s")  # kept by no pipe between two processes
    run = hr.start(
        job, spark=spark, parallelism=1, report="500 ms", chaining="dynamic", schedule="direct", executors=(1, 2)
    )
    try:
        asked = False
        while not run.wait(0.2):
            if not asked and run.constraints()["src → more: mean ≤ 1 ms over 2 s"].cycles >= 3:
                asked = True
                run.override(parallelism={"work": 2}, deadlines={"src > work": "3 ms"})
                run.reschedule("odf")
        kept = run.constraints()["src → more: mean ≤ 1 ms over 2 s"]
        assert asked and kept.met_share is not None and kept.met_share < 0.5
        said = [event.what for event in run.decisions()]
        assert {"batch", "override"} <= set(said)
        assert [e.detail for e in run.decisions() if e.what == "executors"] == [
            "local[10] is one process and has none to manage"
        ]
        assert run.executor_s() is None
        late = [heard for heard in run.reports() if heard.stage > 0][-6:]
        assert {heard.backlog.schedule for heard in late} == {"odf"}, "the controller's later orders keep the schedule"
        served = {(flow.step, heard.index) for heard in run.reports() for flow in heard.flows if flow.items_in}
        assert {("work", 0), ("work", 1)} <= served
        rows = {row["k"]: (row["n"], row["v"]) for row in run.rows("out")}
        assert rows == {k: (TOTAL // 5, sum(range(k, TOTAL, 5))) for k in range(5)}
    finally:
        run.delete_temporary_checkpoint()
