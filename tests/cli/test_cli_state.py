"""``headrace state``, on checkpoints made without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.driver.planning import identity
from headrace.testing import LocalRun, scripted


class FullIdentity(LocalRun):
    """A local run whose checkpoint says as much about the job as one of Spark's."""

    def plan_identity(self) -> dict[str, Any]:
        return identity(self.plan)


def remember(record: dict[str, Any], state: Any, out: Any) -> None:
    state["seen"].set(state["seen"].get(0) + 1)
    state["pages"].append(record["page"])
    out({"user": record["user"], "n": state["seen"].get()})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    visits = [{"user": f"u{i % 4}", "page": f"p{i % 3}"} for i in range(40)]
    job = hr.Job("visits")
    source = job.source("visits", scripted(visits[:25], visits[25:]))
    source.key_by("user").process(remember, name="remember", state={"seen": hr.value(), "pages": hr.queue()})
    longest = hr.reducer(init=lambda: "", update=lambda s, r: max(s, r["page"]), combine=max)
    source.key_by("page").reduce(name="count", n=hr.count(), top=longest)
    run = FullIdentity(job, tmp_path / "checkpoint", mode="microbatch", slices=4)
    try:
        run.epoch()
        run.epoch()
    finally:
        run.close()
    return tmp_path / "checkpoint"


def test_ls_lists_epochs_with_sizes_and_offsets(headrace, checkpoint):
    done = headrace("state", "ls", checkpoint, "--json")
    assert done.code == 0
    epochs = done.answer["epochs"]
    assert [epoch["epoch"] for epoch in epochs] == [0, 1]
    assert epochs[0]["attempt"] == "e00000000-g0001-a000"
    assert epochs[1]["finished"] is True
    assert epochs[1]["offsets"] == {"visits": {"0": {"at": 25}, "1": {"at": 15}}}
    assert epochs[1]["slices"] > 2
    assert epochs[1]["bytes"] > epochs[1]["rows"] > 0
    assert 0 <= epochs[1]["age_s"] < 600
    text = headrace("state", "ls", checkpoint).out
    assert "e00000001-g0001-a000" in text
    assert "{'at': 25}" in text


def test_show_reads_every_slice(headrace, checkpoint):
    done = headrace("state", "show", checkpoint, "--json")
    assert done.code == 0
    answer = done.answer
    assert (answer["ok"], answer["broken"], answer["epoch"]) == (True, 0, 1)
    content = [row for one in answer["slices"] if one["step"] == "remember" for row in one["content"]]
    seen = {row["key"]: row["value"] for row in content if row["name"] == "seen"}
    assert sorted(seen.values()) == [10, 10, 10, 10]
    counts = [row for one in answer["slices"] if one["step"] == "count" for row in one["content"]]
    assert {(row["page"], row["n.n"], row["top.state"]) for row in counts} == {
        ("p0", 14, "p0"), ("p1", 13, "p1"), ("p2", 13, "p2"),
    }  # fmt: skip


def test_show_one_step_or_slice(headrace, checkpoint):
    answer = headrace("state", "show", checkpoint, "--step", "visits", "--slice", "1", "--json").answer
    assert [(one["step"], one["slice"]) for one in answer["slices"]] == [("visits", 1)]
    assert answer["slices"][0]["content"][0]["value"]["offset"] == {"at": 15}
    text = headrace("state", "show", checkpoint, "--step", "remember", "--limit", "1").out
    assert "name=" in text
    assert "… and" in text
    wrong = headrace("state", "show", checkpoint, "--step", "nothing")
    assert wrong.code == 2
    assert "count, remember, visits" in wrong.err.replace("\n", "")


def test_damage_is_named_and_exits_with_1(headrace, checkpoint):
    segments = sorted((checkpoint / "headrace" / "segments").iterdir())
    data = bytearray(segments[-1].read_bytes())
    data[len(data) // 2] ^= 1
    segments[-1].write_bytes(data)
    done = headrace("state", "show", checkpoint, "--json")
    assert done.code == 1
    assert (done.answer["ok"], done.answer["broken"]) == (False, 1)
    assert f"{segments[-1].name} at" in done.err
    assert "checksum differs" in done.err


def test_a_damaged_manifest_is_named(headrace, checkpoint):
    manifests = sorted((checkpoint / "headrace" / "manifests").iterdir())
    manifests[-1].write_bytes(manifests[-1].read_bytes().replace(b"false", b"truee").replace(b"true", b"fals"))
    done = headrace("state", "show", checkpoint, "--json")
    assert done.code == 1
    assert done.answer["kind"] == "CorruptionError"
    assert manifests[-1].name in done.err


def test_looking_changes_nothing(headrace, checkpoint):
    def everything() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}

    before = everything()
    headrace("state", "ls", checkpoint)
    headrace("state", "show", checkpoint)
    assert everything() == before
