"""Figure one: a workflow whose operators differ in selectivity, size of their values and cost.

The topology of C-MR's Figure 1 is not known; this is In → A → B → {C → out, D → E → out}, where memory and latency
want different operators to go first: A and E free memory, D takes more of it.

headrace run examples/figure_one.py
headrace run examples/figure_one.py --mode batch
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr


@dataclass(frozen=True)
class Operator:
    """``outs`` tuples out for every ``ins`` in, each with a value of ``size_bytes``, at ``cost_us`` per tuple in."""

    size_bytes: int
    outs: int
    ins: int
    cost_us: float

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        done_s = time.perf_counter() + batch.num_rows * self.cost_us / 1e6
        n = batch.column("n").to_numpy()
        first, after = n * self.outs // self.ins, (n + 1) * self.outs // self.ins
        counts = after - first
        made = np.repeat(after - np.cumsum(counts), counts) + np.arange(counts.sum())
        result = pa.RecordBatch.from_pydict(tuples(made, self.size_bytes))
        while time.perf_counter() < done_s:
            pass
        return result


def tuples(numbers: npt.NDArray[np.int64], size_bytes: int = 1000) -> dict[str, Any]:
    """Tuples with these numbers and values of this size."""
    return {"n": numbers, "value": pa.array(np.full(len(numbers), b"x" * size_bytes), pa.binary())}


job = hr.Job("figure-one")

b = (
    job.source("in", hr.generate(tuples, rate="10000/s", total=20_000))
    .map_batch(Operator(size_bytes=200, outs=1, ins=1, cost_us=10), name="A")
    .map_batch(Operator(size_bytes=200, outs=1, ins=2, cost_us=8), name="B")
)
b.map_batch(Operator(size_bytes=50, outs=1, ins=1, cost_us=12), name="C").sink("out-c", hr.console(limit=5))
(
    b.map_batch(Operator(size_bytes=200, outs=2, ins=1, cost_us=4), name="D")
    .map_batch(Operator(size_bytes=100, outs=1, ins=10, cost_us=6), name="E")
    .sink("out-e", hr.console(limit=5))
)

if __name__ == "__main__":
    hr.run(job, mode="batch")
