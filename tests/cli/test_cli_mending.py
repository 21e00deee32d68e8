"""``headrace state verify`` and ``repair``, on checkpoints made without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.connect.jsonl import jsonl
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import VersionLog
from headrace.testing import PAUSE, LocalRun, scripted

VISITS = [{"user": f"u{i % 4}", "n": i} for i in range(30)]


def job(out: Path) -> hr.Job:
    made = hr.Job("visits")
    source = made.source("visits", scripted([*VISITS[:10], PAUSE, *VISITS[10:20], PAUSE, *VISITS[20:]]))
    source.key_by("user").reduce(name="count", n=hr.count(), total=hr.sum("n")).sink("out", jsonl(str(out)))
    return made


def run(root: Path, batches: int) -> None:
    local = LocalRun(job(root / "out"), root / "checkpoint", mode="microbatch", slices=4)
    try:
        for _ in range(batches):
            local.batch()
    finally:
        local.close()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    run(tmp_path, 2)
    return tmp_path / "checkpoint"


def versions(checkpoint: Path) -> list[Manifest]:
    log = VersionLog(LocalStorage(checkpoint / "headrace"))
    return [entry.manifest for _, entry in log.last_cuts(2)]


def damage(checkpoint: Path, file: str) -> None:
    path = checkpoint / "headrace" / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)


def test_a_whole_checkpoint_is_verified(headrace: Any, checkpoint: Path) -> None:
    done = headrace("state", "verify", checkpoint, "--json")
    assert (done.code, done.answer["damage"], done.answer["whole"]) == (0, [], done.answer["versions"])
    assert done.answer["blocks"] > 4 and len(done.answer["versions"]) == 2
    assert "0 damaged" in headrace("state", "verify", checkpoint).out
    mended = headrace("state", "repair", checkpoint, "--json")
    assert (mended.code, mended.answer["mended"], mended.answer["lost"]) == (0, 0, 0)


# chronostream fact 34, by hand: found, named, mended from a copy
def test_damage_is_named_and_mended_from_a_copy(headrace: Any, checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint, tmp_path / "copy")
    files = sorted(versions(checkpoint)[-1].files)
    damage(checkpoint, files[0])
    (checkpoint / "headrace" / files[-1]).unlink()
    done = headrace("state", "verify", checkpoint, "--json")
    assert done.code == 1
    assert {one["file"] for one in done.answer["damage"]} == {files[0], files[-1]}
    assert files[0] in done.err and "its segment is missing" in done.err
    assert headrace("state", "repair", checkpoint, "--json").code == 1, "no copy"
    mended = headrace("state", "repair", checkpoint, "--copies", tmp_path / "copy", "--json")
    assert (mended.code, mended.answer["lost"], mended.answer["damage"]) == (0, 0, [])
    assert mended.answer["mended"] == len(done.answer["damage"])
    assert headrace("state", "verify", checkpoint).code == 0


def test_a_job_goes_back_where_no_copy_mends_its_newest_version(
    headrace: Any, checkpoint: Path, tmp_path: Path
) -> None:
    before, newest = versions(checkpoint)
    for file in newest.files - before.files:
        damage(checkpoint, file)
    done = headrace("state", "repair", checkpoint, "--json")
    assert (done.code, done.answer["whole"]) == (1, [str(before.token)])
    assert "repair --back goes back" in done.err
    gone = headrace("state", "repair", checkpoint, "--back", "--json")
    assert (gone.code, gone.answer["went_back_to"]) == (0, str(before.token))
    again = versions(checkpoint)[-1]
    assert again.base == newest.token and again.slices == before.slices
    run(tmp_path, 3)
    last = versions(checkpoint)[-1]
    assert last.exhausted
    shown = headrace("state", "show", checkpoint, "--step", "count", "--json")
    assert shown.code == 0
    rows = [row for one in shown.answer["slices"] for row in one["content"]]
    assert sorted((row["user"], row["n"]) for row in rows) == [("u0", 8), ("u1", 8), ("u2", 7), ("u3", 7)]


def test_going_back_is_for_the_newest_version_only(headrace: Any, checkpoint: Path) -> None:
    before, newest = versions(checkpoint)
    for file in before.files - newest.files or before.files:
        damage(checkpoint, file)
    done = headrace("state", "repair", checkpoint, "--back", "--json")
    assert done.code == 1 and "went_back_to" not in done.answer
