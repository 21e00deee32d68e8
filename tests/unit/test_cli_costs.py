"""What a reduce is predicted to cost in batch mode: sizes from files or from ``expect``, engines from the graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.cli.explain.reducecosts import ReduceCost, reduce_costs
from headrace.config import Settings
from headrace.driver.planning import plan_job
from headrace.model.hashcost import inc_buckets, inc_io_pages

KB = 1024


def cost(tmp_path: Path, lines: int = 20_000, emit: Any = None, **kept: Any) -> ReduceCost:
    path = tmp_path / "in.jsonl"
    path.write_text('{"k": "some key"}\n' * lines)
    job = hr.Job("sizes")
    keyed = job.source("in", hr.replay(path)).key_by("k").window(hr.whole_input())
    reduced = keyed.reduce(name="n", state=hr.keep(**kept), emit=emit, parallelism=1, n=hr.count())
    reduced.sink("out", hr.console())
    (made,) = reduce_costs(plan_job(job, tmp_path / "nowhere", Settings.of(mode="batch")))
    return made


# scalla 2.5: with memory for all nothing is written; else 2(1 - (B-h-1)/U)D pages with as few buckets as suffice
def test_costs_are_the_models(tmp_path: Path) -> None:
    assert cost(tmp_path).moved_bytes == 0
    roomy = cost(tmp_path, memory="1 MB", engine="inc")
    assert (roomy.fits, roomy.passes, roomy.moved_bytes, roomy.input_bytes) == (True, 0, 0, 360_000)
    tight = cost(tmp_path, memory=100 * KB, engine="inc")
    expected = inc_io_pages(25, 88, 88, inc_buckets(25, 88).fewest) * 4096
    assert (tight.fits, tight.passes, tight.moved_bytes) == (False, 1, int(expected))
    assert "written and read again, in 1 pass(es)" in tight.sentence()


def test_too_little_memory_takes_another_pass(tmp_path: Path) -> None:
    once, twice = (cost(tmp_path, memory=pages * 4096, engine="inc") for pages in (12, 8))
    assert (once.passes, twice.passes) == (1, 2)
    assert once.moved_bytes is not None and twice.moved_bytes is not None and twice.moved_bytes > once.moved_bytes
    assert twice.sort_merge_bytes is not None and twice.sort_merge_bytes > 0


def test_mr_hash_writes_all_and_reads_it(tmp_path: Path) -> None:
    assert cost(tmp_path, memory="1 MB", engine="mr").moved_bytes == 2 * 360_000


def test_sizes_that_are_not_known(tmp_path: Path) -> None:
    job = hr.Job("unknown")
    made = job.source("in", hr.generate(lambda n: {"k": n}, total=10)).key_by("k").window(hr.whole_input())
    made.reduce(name="n", state=hr.keep(memory="1 MB"), n=hr.count()).sink("out", hr.console())
    (unknown,) = reduce_costs(plan_job(job, tmp_path, Settings.of(mode="batch")))
    assert unknown.fits is None and unknown.moved_bytes is None and "not known" in unknown.sentence()
    asked = {"memory": "1 MB", "coverage": 0.5, "max_records": 1000}
    assert cost(tmp_path, emit=hr.at_least(n=900), **asked).input_bytes == 1000 * 20


@pytest.mark.parametrize(("lines", "sentence"), [(0, "Input of 0 bytes"), (1, "all states fit")])
def test_small_inputs(tmp_path: Path, lines: int, sentence: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text('{"k": "some key"}\n' * lines)
    job = hr.Job("small")
    keyed = job.source("in", hr.replay(path, schema={"k": "string"})).key_by("k").window(hr.whole_input())
    keyed.reduce(name="n", state=hr.keep(memory="1 MB"), n=hr.count()).sink("out", hr.console())
    (made,) = reduce_costs(plan_job(job, tmp_path / "nowhere", Settings.of(mode="batch")))
    assert sentence in made.sentence()
