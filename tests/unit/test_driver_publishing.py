"""What the driver does with all sinks of a job: claims, publishes, settles, discards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.connect.sink import Sink, SinkContext, Staged
from headrace.driver.publishing import check_sinks, claim_sinks, discard_unlogged, publish, settle, sinks_of
from headrace.errors import ConfigError
from headrace.state.durable.storage import LocalStorage
from headrace.testing import scripted
from headrace.tokens import Token

CUTS = [Token(1, 0, cut) for cut in (1, 2, 3)]


def plan_of(home: Path, seen: list[Any], out: str = "out") -> Any:
    """As much of a plan as sinks need: a file sink, a callback and a dead-letter sink."""
    job = hr.Job("numbers", dead_letter=hr.jsonl(home / "letters"))
    numbers = job.source("numbers", scripted([{"n": 1}]))
    numbers.sink("files", hr.parquet(home / out)).sink("calls", hr.callback(seen.append, when="on_commit"))
    return SimpleNamespace(graph=job.graph(), checkpoint=home / "state")


def staged_by(plan: Any, token: Token) -> list[Staged]:
    def write(step: str, sink: Sink) -> list[Staged]:
        staging = sink.staging_root(plan.checkpoint) / step / str(token)
        staging.mkdir(parents=True)
        writer = sink.open(SinkContext(step, token, 0, staging, lambda step, rows: None))
        writer.write(pa.RecordBatch.from_pylist([{"cut": token.cut}]))
        return [*writer.close()]

    return [piece for step, sink in sinks_of(plan).items() for piece in write(step, sink)]


def results(directory: Path) -> int:
    return len([*directory.glob("part-*")])


def test_logged_cuts_are_published_in_every_sink_and_others_leave_nothing(tmp_path: Path) -> None:
    seen: list[pa.RecordBatch] = []
    plan = plan_of(tmp_path, seen)
    manifests: list[Any] = [SimpleNamespace(token=token, staged=tuple(staged_by(plan, token))) for token in CUTS]
    assert {piece.step for piece in manifests[0].staged} == sinks_of(plan).keys() and len(sinks_of(plan)) == 3
    for manifest in (*manifests[:2], *manifests[:2]):
        publish(plan, manifest)
    assert [batch.to_pylist() for batch in seen] == [[{"cut": 1}], [{"cut": 2}]]
    assert results(tmp_path / "out") == 0 and results(tmp_path / "letters") == 1
    discard_unlogged(plan, lambda token: token in CUTS[:2])
    settle(plan)
    assert results(tmp_path / "out") == 1
    assert not [
        path for home in ("out/_staging", "letters/_staging", "state") for path in (tmp_path / home).rglob("*.*")
    ]


def test_a_sink_is_claimed_for_one_checkpoint(tmp_path: Path) -> None:
    plan, storage = plan_of(tmp_path, []), LocalStorage(tmp_path / "state" / "headrace")
    for _ in range(2):
        claim_sinks(plan, storage)
    grown = plan_of(tmp_path, [], out="another")
    claim_sinks(grown, storage)
    with pytest.raises(ConfigError, match="results of another checkpoint"):
        claim_sinks(plan, LocalStorage(tmp_path / "new" / "headrace"))


def test_a_sink_that_fails_is_named_with_the_version_that_it_did_not_take(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, [])

    def down(rows: pa.Table, version: int) -> None:
        raise ConnectionError("target is down")

    nodes = tuple(
        replace(node, sink=hr.callback(down, when="on_commit")) if node.name == "calls" else node
        for node in plan.graph.nodes
    )
    plan.graph = replace(plan.graph, nodes=nodes)
    manifest: Any = SimpleNamespace(token=CUTS[1], staged=tuple(staged_by(plan, CUTS[1])))
    with pytest.raises(hr.RunFailedError, match="sink 'calls', version 2: ConnectionError: target is down"):
        publish(plan, manifest)


def test_directories_with_results_of_another_are_noticed_without_claiming_any(tmp_path: Path) -> None:
    plan, storage = plan_of(tmp_path, []), LocalStorage(tmp_path / "state" / "headrace")
    check_sinks(plan, storage)
    assert not (tmp_path / "out").exists() and not (tmp_path / "state").exists()
    claim_sinks(plan, storage)
    check_sinks(plan, storage)
    with pytest.raises(ConfigError, match="results of another checkpoint"):
        check_sinks(plan, LocalStorage(tmp_path / "new" / "headrace"))


def test_a_run_is_refused_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: Any, **options: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("headrace.spark.session.open_session", never)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-1.jsonl").touch()
    job = hr.Job("numbers")
    job.source("numbers", scripted([{"n": 1}])).sink("out", hr.jsonl(tmp_path / "out"))
    with pytest.raises(ConfigError, match="out has results of another checkpoint"):
        hr.start(job, checkpoint=tmp_path / "checkpoint")
