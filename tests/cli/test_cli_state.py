"""``headrace state``, on checkpoints made without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.testing import PAUSE, LocalRun, scripted


def remember(record: dict[str, Any], state: Any, out: Any) -> None:
    state["seen"].set(state["seen"].get(0) + 1)
    state["pages"].append(record["page"])
    out({"user": record["user"], "n": state["seen"].get()})


def job() -> hr.Job:
    visits = [{"user": f"u{i % 4}", "page": f"p{i % 3}"} for i in range(40)]
    made = hr.Job("visits")
    source = made.source("visits", scripted([*visits[:9], PAUSE, *visits[9:25]], visits[25:]))
    source.key_by("user").process(remember, name="remember", state={"seen": hr.value(), "pages": hr.queue()})
    longest = hr.reducer(init=lambda: "", update=lambda s, r: max(s, r["page"]), combine=max)
    source.key_by("page").reduce(name="count", n=hr.count(), top=longest)
    return made


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    run = LocalRun(job(), tmp_path / "checkpoint", mode="microbatch", slices=4)
    try:
        run.batch()
        run.batch()
    finally:
        run.close()
    return tmp_path / "checkpoint"


def test_ls_lists_versions_with_sizes_and_offsets(headrace, checkpoint):
    done = headrace("state", "ls", checkpoint, "--json")
    assert done.code == 0
    first, last = done.answer["versions"]
    assert (first["cut"], last["cut"]) == (1, 2)
    assert (first["version"], first["attempt"]) == ("c0000000001-g000001-a0001", "g000001-a0001")
    assert (first["exhausted"], last["exhausted"]) == (False, True)
    assert last["offsets"] == {"visits": {"0": {"at": 26}, "1": {"at": 15}}}
    assert last["slices"] > 2
    assert last["bytes"] > last["rows"] > 0
    assert 0 <= last["age_s"] <= first["age_s"] < 600
    text = headrace("state", "ls", checkpoint).out
    assert last["version"] in text
    assert "input ended" in text.splitlines()[-4]
    assert "visits, partition 0, goes on from at: 26" in text


def test_a_checkpoint_without_a_version_has_nothing_to_show(headrace, tmp_path):
    LocalRun(job(), tmp_path / "fresh", mode="microbatch", slices=4).close()
    assert headrace("state", "ls", tmp_path / "fresh").out.strip() == "there is no version yet"
    show = headrace("state", "show", tmp_path / "fresh")
    assert (show.code, "there is no version yet" in show.err) == (2, True)


def test_what_is_no_checkpoint_is_a_usage_error(headrace, tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        done = headrace("state", "ls", place)
        assert done.code == 2
        assert "is not the checkpoint of a Headrace job" in done.err.replace("\n", " ")


def test_a_checkpoint_of_an_earlier_headrace_is_refused_by_name(headrace, tmp_path):
    (tmp_path / "headrace" / "picks").mkdir(parents=True)
    (tmp_path / "headrace" / "picks" / "00000000").write_text("")
    (tmp_path / "headrace" / "job.json").write_text("{}")
    done = headrace("state", "ls", tmp_path, "--json")
    assert (done.code, done.answer["kind"]) == (1, "StateError")
    assert "had no version log" in done.err


def test_show_reads_every_slice(headrace, checkpoint):
    done = headrace("state", "show", checkpoint, "--json")
    assert done.code == 0
    answer = done.answer
    assert (answer["ok"], answer["broken"], answer["cut"]) == (True, 0, 2)
    content = [row for one in answer["slices"] if one["step"] == "remember" for row in one["content"]]
    seen = {row["key"]: row["value"] for row in content if row["name"] == "seen"}
    assert sorted(seen.values()) == [10, 10, 10, 10]
    counts = [row for one in answer["slices"] if one["step"] == "count" for row in one["content"]]
    assert {(row["page"], row["n"], row["top"]) for row in counts} == {
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


def test_a_damaged_entry_of_the_log_is_named(headrace, checkpoint):
    newest = max((checkpoint / "headrace" / "log").iterdir())
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    done = headrace("state", "show", checkpoint, "--json")
    assert done.code == 1
    assert done.answer["kind"] == "CorruptionError"
    assert f"entry {int(newest.name)} of the version log has changed" in done.err


def test_looking_changes_nothing(headrace, checkpoint):
    def everything() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in checkpoint.rglob("*") if path.is_file()}

    before = everything()
    headrace("state", "ls", checkpoint)
    headrace("state", "show", checkpoint)
    assert everything() == before


def files_job(inbox: Path) -> hr.Job:
    def ring(timer: Any, state: Any, out: Any) -> None:
        """Not before the input has ended."""

    def wait(record: dict[str, Any], state: Any, out: Any) -> None:
        state["seen"].set(record["user"])
        state.timer(after="1 h")

    made = hr.Job("inbox")
    source = made.source("inbox", hr.files(inbox), event_time="t")
    source.key_by("user").process(
        wait, name="wait", state={"seen": hr.value(ttl="1 day")}, on_timer=ring, returns={"n": "int"}
    )
    return made


def test_long_offsets_are_counted_and_times_are_readable(headrace, tmp_path):
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for i in range(20):
        (inbox / f"visits-{i:02d}.jsonl").write_text(f'{{"user": "u{i}", "t": {1_700_000_000_000 + i}}}\n')
    run = LocalRun(files_job(inbox), tmp_path / "checkpoint", mode="microbatch", slices=1)
    try:
        for _ in range(4):
            run.batch()
    finally:
        run.close()
    text = headrace("state", "ls", tmp_path / "checkpoint").out
    assert "(20 entries)" in text.splitlines()[-1]
    assert ".jsonl" not in text.splitlines()[-1]
    assert "visits-07.jsonl" in headrace("state", "ls", tmp_path / "checkpoint", "--verbose").out
    shown = headrace("state", "show", tmp_path / "checkpoint", "--limit", "100").out
    assert "newest: 2023-11-14T22:13:20.019000+00:00" in shown
    assert "timer=event  key=u0  tag=  at=2023-11-14T23:13:20+00:00" in shown
    assert "name=seen  key=u0  value=u0  set_at=2023-11-14T22:13:20+00:00" in shown
    assert "visits-07.jsonl" not in shown
    assert "1700000000" not in shown


def test_export_writes_what_read_state_gives(headrace, checkpoint, tmp_path):
    from pyarrow import csv, parquet

    table = hr.read_state(checkpoint, "remember")
    done = headrace("state", "export", checkpoint, "--step", "remember", "--to", tmp_path / "s.parquet", "--json")
    assert (done.code, done.answer["rows"], done.answer["columns"]) == (0, 4, ["user", "seen", "pages"])
    assert parquet.read_table(tmp_path / "s.parquet").equals(table)
    assert "4 rows of step 'remember' are in" in done.err
    headrace("state", "export", checkpoint, "--step", "remember", "--to", tmp_path / "s.csv")
    assert csv.read_csv(tmp_path / "s.csv").column("pages")[0].as_py().startswith('["p')
    headrace("state", "export", checkpoint, "--step", "remember", "--to", tmp_path / "s.jsonl")
    lines = headrace("state", "export", checkpoint, "--step", "remember").out
    assert lines == (tmp_path / "s.jsonl").read_text()
    assert [json.loads(line) for line in lines.splitlines()] == table.to_pylist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--step", "nothing"), "the job has no step 'nothing'; steps with state: count, remember, visits"),
        (("--step", "count", "--to", "state.xls"), "a file ends in .parquet, .csv, .jsonl"),
        (("--step", "count", "--to", "no/such/place/state.csv"), "there is no directory"),
        ((), "Missing option '--step'"),
    ],
)
def test_what_cannot_be_exported_is_a_usage_error(headrace, checkpoint, options, words):
    done = headrace("state", "export", checkpoint, *options)
    assert done.code == 2
    assert words in " ".join(done.err.replace("│", " ").split())
