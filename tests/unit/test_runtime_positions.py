"""Offsets of sources in their state: what a cut writes of them, and that they are as they were after a restore."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from durable import Chains
from workflows import out

import headrace as hr
from headrace.graph.windowing import NEVER_US
from headrace.runtime.operators.positions import Positions
from headrace.state.stores.keyvalues import KeyedStore
from headrace.testing import LocalRun


def store() -> KeyedStore:
    return KeyedStore("s", lambda keys: [int(str(key)) for key in keys])


def test_a_cut_writes_what_is_new_of_a_long_set() -> None:
    kept, chains = store(), Chains()
    positions = Positions(kept)
    assert positions.of(0) == (None, NEVER_US)
    names = {f"file-{i}" for i in range(1000)}
    for change in ({"more"}, set[str](), {"another"}):
        names |= change
        names -= {"file-7"} if change == {"another"} else set()
        positions.note(0, {"done": names, "current": None, "pos": {"at": len(names)}}, 5)
        chains.take(kept.changes())
    first, last = chains.changes[0]
    assert (first.puts.num_rows, first.deletes.num_rows) == (1002, 0)
    assert (last.puts.num_rows, last.deletes.num_rows) == (1, 1)
    restored = store()
    for slice, image, digest in chains.images():
        restored.load(slice, image, digest)
    again = Positions(restored)
    assert again.of(0) == ({"done": names, "current": None, "pos": {"at": len(names)}}, 5)
    again.note(0, {"done": names | {"new"}, "current": None, "pos": {"at": len(names)}}, 5)
    (change,) = restored.changes()
    assert (change.puts.num_rows, change.deletes.num_rows) == (1, 0)


def test_offsets_that_were_stored_whole_are_read() -> None:
    old = store()
    old.set("position", 3, None, {"offset": {"done": ["a", "b"], "current": None, "pos": {}}, "newest_us": 7})
    positions = Positions(old)
    offset, newest_us = positions.of(3)
    assert (offset, newest_us) == ({"done": ["a", "b"], "current": None, "pos": {}}, 7)
    positions.note(3, {"done": {"a", "b", "c"}, "current": None, "pos": {}}, 7)
    assert Positions(old).of(3) == ({"done": {"a", "b", "c"}, "current": None, "pos": {}}, 7)


def test_each_file_is_read_once_across_restarts(tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    job = hr.Job("job")
    job.source("s", hr.files(inbox, schema={"n": "int64"}, partitions=2)).sink("out", out())
    written: list[int] = []
    rows: list[dict[str, Any]] = []
    for turn in range(4):
        for n in range(10 * turn, 10 * turn + 5):
            (inbox / f"{n}.jsonl").write_text(json.dumps({"n": n}) + "\n")
            written.append(n)
        if turn == 2:
            (inbox / "0.jsonl").unlink()
        run = LocalRun(job, tmp_path / "checkpoint", mode="microbatch")
        try:
            run.batch()
            run.batch()
            rows = run.rows("out")
        finally:
            run.close()
    assert sorted(row["n"] for row in rows) == written
    table = hr.read_state(tmp_path / "checkpoint", "s")
    done = [name for offset in table.column("offset").to_pylist() for name in json.loads(offset)["done"]]
    assert len(done) == len(written) - 1 and "0.jsonl" not in done
