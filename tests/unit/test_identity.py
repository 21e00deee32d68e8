"""A job and its checkpoint: what may become different, what may not, and the words for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from workflows import out

import headrace as hr
from headrace.config import Settings
from headrace.driver.identity import Identity, differences, identity, known_identity, settle_identity
from headrace.driver.planning import plan_job
from headrace.errors import CorruptionError, StateError
from headrace.graph.nodes import PaneNode, ReduceNode
from headrace.runtime.build import build_reduce
from headrace.runtime.operators.usercode import Guard
from headrace.runtime.plan import JobPlan
from headrace.runtime.reduce.reduce import Place
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import LocalStorage
from headrace.state.durable.versionlog import CutEntry, VersionLog
from headrace.testing import scripted
from headrace.tokens import Token

SCHEMA = {"k": "string", "v": "int64", "t": "int64"}
RECORDS = [{"k": "abc"[i % 3], "v": i, "t": 10 * i} for i in range(20)]
Change = Callable[["Parts"], None]


class Parts:
    """A job in parts that a test changes before it is built."""

    def __init__(self) -> None:
        self.job, self.settings = "job", dict[str, Any]()
        self.source: Any = scripted(RECORDS, RECORDS, schema=SCHEMA)
        self.source_name, self.source_options = "s", dict[str, Any](event_time="t")
        self.mapped = lambda r: {"k": r["k"], "v": r["v"], "t": r["t"]}
        self.map_options = dict[str, Any](name="m")
        self.key, self.reduce_name, self.window = "k", "r", hr.tumbling("50 ms")
        self.results: dict[str, Any] = {"n": hr.count(), "v": hr.sum("v")}
        self.reduce_options = dict[str, Any]()
        self.process_options = dict[str, Any](name="p", state={"n": hr.value(), "vs": hr.queue()})
        self.join_options = dict[str, Any](name="j")
        self.join_window: hr.Window | None = hr.tumbling("100 ms")
        self.sinks = ["r", "j"]
        self.more: Callable[[hr.Job, Any], None] = lambda job, mapped: None

    def built(self) -> hr.Job:
        job = hr.Job(self.job)
        s = job.source(self.source_name, self.source, **self.source_options)
        m = s.map(self.mapped, **self.map_options)
        windowed = m.key_by(self.key).window(self.window) if self.window is not None else m.key_by(self.key)
        steps = {
            "r": windowed.reduce(name=self.reduce_name, **self.results, **self.reduce_options),
            "p": s.key_by("k").process(count, returns={"k": "str"}, **self.process_options),
            "j": (m.key_by("k").window(self.join_window) if self.join_window is not None else m.key_by("k")).join(
                s.key_by("k"), **self.join_options
            ),
        }
        for step in self.sinks:
            steps[step].sink(f"{step}-out", out())
        self.more(job, m)
        return job

    def set(self, **values: Any) -> None:
        for name, value in values.items():
            (getattr(self, name).update if isinstance(value, dict) else lambda v, n=name: setattr(self, n, v))(value)


def count(record: Any, state: Any, out: Any) -> None:
    out({"k": record["k"]})


def numbered(n: Any) -> dict[str, Any]:
    return {"k": n.astype(str), "v": n, "t": n}


def changed(**values: Any) -> Change:
    return lambda parts: parts.set(**values)


def planned(checkpoint: Path, change: Change = lambda parts: None) -> JobPlan:
    parts = Parts()
    change(parts)
    return plan_job(parts.built(), checkpoint, Settings.of(**parts.settings))


def settled(checkpoint: Path, change: Change = lambda parts: None) -> Identity:
    return settle_identity(LocalStorage(checkpoint / "headrace"), planned(checkpoint, change))


def begun(checkpoint: Path, change: Change = lambda parts: None) -> Identity:
    """As ``settled``, and the job has come to a first cut."""
    known = settled(checkpoint, change)
    a_cut_follows(checkpoint)
    return known


def refusal(checkpoint: Path, change: Change) -> list[str]:
    with pytest.raises(StateError) as caught:
        settled(checkpoint, change)
    sentences, allowed = str(caught.value).rsplit("\n", 1)
    assert allowed.startswith("What may change on a checkpoint: functions, bounds, parallelism, mode, lateness, ttl=")
    head, *found = sentences.split("\n  - ")
    assert head == f"the job does not fit checkpoint {checkpoint}:"
    return found


def a_cut_follows(checkpoint: Path) -> None:
    log = VersionLog(LocalStorage(checkpoint / "headrace"))
    number = log.newest() + 1
    assert log.append(number, CutEntry(Manifest(Token(1, 0, number), None)))


def with_reduce(job: hr.Job, mapped: Any) -> None:
    mapped.key_by("k").window(hr.session_window("1 s")).reduce(name="new", n=hr.count()).sink("new-out", out())


def bounded(job: hr.Job, mapped: Any) -> None:
    end = mapped.sink("end", out())
    job.constrain(mapped >> end, p99="1 s")


ALLOWED: dict[str, Change] = {
    "the same": lambda parts: None,
    "a new sink": changed(sinks=["r", "j", "p"]),
    "a sink less": changed(sinks=["r"]),
    "new steps with state": changed(more=with_reduce),
    "a bound": changed(more=bounded),
    "parallelism": changed(settings={"parallelism": 3}),
    "a step's parallelism": changed(reduce_options={"parallelism": (1, 2, 4)}),
    "mode": changed(settings={"mode": "microbatch"}),
    "a memory bound": changed(reduce_options={"state": hr.keep(memory="1 MB")}),
    "an engine": changed(reduce_options={"state": hr.keep(memory="1 MB", engine="dinc")}),
    "a function": changed(mapped=lambda r: {"k": r["k"].upper(), "v": r["v"] + 1, "t": r["t"]}),
    "lateness": changed(source_options={"lateness": "1 s"}),
    "the kind of outer join": changed(join_options={"how": "left"}),
    "how long state is kept": changed(process_options={"state": {"n": hr.value(ttl="1 day"), "vs": hr.queue()}}),
    "a new state of a process": changed(process_options={"state": {"n": hr.value(), "vs": hr.queue(), "x": hr.mapping()}}),
    "how errors are handled": changed(map_options={"on_error": "skip"}),
}  # fmt: skip


@pytest.mark.parametrize("change", ALLOWED.values(), ids=list(ALLOWED))
def test_what_may_change(change: Change, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path)
    grown = settled(tmp_path, change)
    assert grown == known_identity(tmp_path), "it is stored as it is now"
    assert settled(tmp_path, change) == grown
    assert caplog.messages == []


# chronostream fact 3: what the checkpoint has is kept; C4 and 6(e): four slices for each subtask at full scale
@pytest.mark.parametrize(
    ("first", "slices"),
    [
        (changed(), 64),
        (changed(settings={"parallelism": 16}), 64),
        (changed(settings={"parallelism": 17}), 128),
        (changed(reduce_options={"parallelism": (1, 2, 40)}), 256),
        (changed(settings={"parallelism": 20_000}), 32_768),
        (changed(settings={"slices": 5}), 5),
    ],
    ids=["default", "at the border", "beyond it", "an elastic step", "as many as fit", "by hand"],
)
def test_the_number_of_slices_is_a_rule_that_a_checkpoint_fixes(first: Change, slices: int, tmp_path: Path) -> None:
    assert begun(tmp_path, first).slices == slices
    for later in (changed(), changed(settings={"parallelism": 100}), changed(settings={"slices": slices})):
        assert planned(tmp_path, later).slices == settled(tmp_path, later).slices == slices
    with pytest.raises(StateError, match=f"divided into slices={slices}, and the job has slices=6 now"):
        settled(tmp_path, changed(settings={"slices": 6}))


_BACK = "set it back, or start with a new checkpoint"
_AFRESH = "set it back, or give the step another name, under which it starts without state"
_USER = hr.reducer(init=list, update=lambda s, r: s, combine=lambda a, b: a + b)
REFUSED: list[tuple[str, Change, list[str]]] = [
    ("job", changed(job="other"),
     ["it belongs to job 'job', and this is job 'other'; call the job 'job' again, or give it a checkpoint of its own"]),
    ("slices", changed(settings={"slices": 32}),
     ["its keys are divided into slices=64, and the job has slices=32 now; set slices=64, or start with a new checkpoint"]),
    ("window", changed(window=hr.tumbling("60 ms")),
     [f"step 'r': window was 0.05 s every 0.05 s, and is 0.06 s every 0.06 s now; {_AFRESH}"]),
    ("key", changed(key="t"), [f"step 'r': key was k, and is t now; {_AFRESH}"]),
    ("result", changed(results={"v": hr.max("v")}), [f"step 'r': result 'v' was sum(v), and is max(v) now; {_AFRESH}"]),
    ("own reducer", changed(results={"v": _USER}),
     [f"step 'r': result 'v' was sum(v), and is a reducer of your own now; {_AFRESH}"]),
    ("new result", changed(results={"m": hr.mean("v")}), [f"step 'r': result 'm' is new: mean(v); {_AFRESH}"]),
    ("result gone", lambda parts: parts.results.pop("n"), [f"step 'r': result 'n' was count(), and is gone; {_AFRESH}"]),
    ("order of results", lambda parts: parts.results.update(n=parts.results.pop("n")),
     [f"step 'r': its results were in the order 'n', 'v', and are in the order 'v', 'n' now; {_AFRESH}"]),
    ("early results", changed(reduce_options={"emit": hr.at_least(n=3)}),
     [f"step 'r': emit= (or a reducer's early=) was none, and is given now; {_AFRESH}"]),
    ("combining", changed(reduce_options={"state": hr.keep(combine=False)}),
     [f"step 'r': combining was on, and is off (combine=False, or a reducer that has no combine=) now; {_AFRESH}"]),
    ("records instead of states", changed(reduce_options={"state": hr.keep(memory="1 MB", engine="mr")}),
     [f"step 'r': memory= was none, and is a bound, with engine 'mr' now; {_AFRESH}"]),
    ("state of a process", changed(process_options={"state": {"n": hr.queue(), "vs": hr.queue()}}),
     ["step 'p': its state 'n' was a value, and is a queue now; set it back, or give the new state another name"]),
    ("window of a join", changed(join_window=hr.tumbling("200 ms")),
     [f"step 'j': window was 0.1 s every 0.1 s, and is 0.2 s every 0.2 s now; {_AFRESH}"]),
    ("from a window to an interval", changed(join_window=None, join_options={"within": "1 s"}),
     [f"step 'j': window was 0.1 s every 0.1 s, and is from 1 s before to 1 s after now; {_AFRESH}",
      f"step 'j': how is new: inner; {_AFRESH}", f"step 'j': memory= is new: none; {_AFRESH}"]),
    ("partitions", changed(source=scripted(RECORDS, schema=SCHEMA)),
     [f"step 's': number of partitions was 2, and is 1 now; {_BACK}"]),
    ("kind of source", changed(source=hr.generate(numbered, rate="1/s", partitions=2, schema=SCHEMA)),
     [f"step 's': kind of source was Scripted, and is Generate now; {_BACK}"]),
    ("event time", changed(source_options={"event_time": "v"}),
     [f"step 's': event time was column 't', and is column 'v' now; {_BACK}"]),
    ("source renamed", changed(source_name="s2"),
     ["source 's' seems to be called 's2' now, and would be read from its start once more; call it 's' again, or start "
      "with a new checkpoint"]),
    ("step renamed", changed(reduce_name="r2"),
     ["step 'r' seems to be called 'r2' now, and would start without state; call it 'r' again (name='r'); if that is what "
      "you want, run the job once without 'r2'"]),
    ("kind of step", changed(process_options={"name": "r"}, reduce_name="q"),
     [f"step 'r' was of kind reduce, and is of kind process now; {_AFRESH}"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentences"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_may_not_change(change: Change, sentences: list[str], tmp_path: Path) -> None:
    known = begun(tmp_path)
    assert refusal(tmp_path, change) == sentences
    assert known_identity(tmp_path) == known, "a job that is refused leaves no trace"
    settled(tmp_path)


def test_windows_are_told_apart_to_the_microsecond(tmp_path: Path) -> None:
    begun(tmp_path, changed(window=hr.tumbling("1234567891 us")))
    assert refusal(tmp_path, changed(window=hr.tumbling("1234567892 us"))) == [
        f"step 'r': window was 1234.567891 s every 1234.567891 s, and is 1234.567892 s every 1234.567892 s now; {_AFRESH}"
    ]


def test_columns_that_state_is_made_of_stay(tmp_path: Path) -> None:
    begun(tmp_path)
    as_float = changed(map_options={"returns": {"k": "str", "v": "float", "t": "int"}})
    assert refusal(tmp_path, as_float) == [
        f"step 'r': column 'v' of its input was int64, and is double now; {_AFRESH}",
        f"step 'j': column 'v' of its left input, whose records it keeps, was int64, and is double now; {_AFRESH}",
    ]
    wider = changed(map_options={"returns": {"k": "str", "v": "int", "t": "int", "x": "int"}})
    assert refusal(tmp_path, wider) == [
        f"step 'j': column 'x' of its left input, whose records it keeps, is new (int64); {_AFRESH}"
    ]
    fewer = changed(map_options={"returns": {"k": "str", "v": "int"}})
    assert refusal(tmp_path, fewer) == [
        f"step 'j': column 't' of its left input, whose records it keeps, is gone (it was int64); {_AFRESH}"
    ]
    reordered = changed(map_options={"returns": {"v": "int", "k": "str", "t": "int"}})
    assert refusal(tmp_path, reordered) == [
        "step 'j': the columns of its left input, whose records it keeps, were in the order k, v, t, and are in the order "
        f"v, k, t now; {_AFRESH}"
    ]


def test_before_the_first_cut_only_the_job_counts(tmp_path: Path) -> None:
    settled(tmp_path)
    grown = settled(tmp_path, changed(key="t", window=hr.session_window("1 s"), source_name="s2"))
    assert "s" not in grown.steps and grown.retired == {} and grown == known_identity(tmp_path)
    assert len(refusal(tmp_path, changed(job="other"))) == 1


@pytest.mark.parametrize("window", [hr.session_window("1 s"), hr.count_window(3)])
def test_records_that_wait_on_disk_keep_all_their_columns(window: Any, tmp_path: Path) -> None:
    def job(*more: str) -> hr.Job:
        made = hr.Job("job")
        s = made.source("s", scripted(RECORDS, schema=SCHEMA), event_time="t")
        m = s.map(lambda r: r | dict.fromkeys(more, 1), name="m")
        m.key_by("k").window(window).reduce(name="r", n=hr.count(), state=hr.keep(memory="1 MB")).sink("r-out", out())
        return made

    storage = LocalStorage(tmp_path / "headrace")
    settle_identity(storage, plan_job(job(), tmp_path, Settings.of()))
    a_cut_follows(tmp_path)
    with pytest.raises(StateError, match="column 'x' of its input, whose records it keeps, is new \\(int64\\)"):
        settle_identity(storage, plan_job(job("x"), tmp_path, Settings.of()))


def test_all_that_does_not_fit_is_said_at_once(tmp_path: Path) -> None:
    begun(tmp_path)
    change = changed(
        settings={"slices": 32}, key="t", window=hr.tumbling("60 ms"), process_options={"state": {"n": hr.queue()}}
    )
    assert len(refusal(tmp_path, change)) == 4


def test_another_format_is_named(tmp_path: Path) -> None:
    now = identity(planned(tmp_path))
    (found,) = differences(msgspec.structs.replace(now, format=99, hashing="md5"), now, 1)
    assert found.refused and "another version of Headrace wrote it (format 99, hashing md5; this one reads" in str(
        found
    )


def test_a_memory_bound_stays_a_bound(tmp_path: Path) -> None:
    begun(tmp_path, changed(reduce_options={"state": hr.keep(memory="1 MB")}))
    settled(tmp_path, changed(reduce_options={"state": hr.keep(memory="2 MB", engine="inc")}))
    assert refusal(tmp_path, lambda parts: None) == [
        "step 'r': it had a memory bound, so part of its state is on disk, and has none now (it may be as large as you "
        f"like); {_AFRESH}"
    ]


def test_what_was_never_kept_relied_on_max_records(tmp_path: Path) -> None:
    def kept(memory: str, max_records: int | None) -> Change:
        state = hr.keep(memory=memory, engine="dinc", coverage=0.9, max_records=max_records)
        options = {"state": state, "emit": hr.at_least(n=3)}
        return changed(window=hr.whole_input(), results={"n": hr.count()}, reduce_options=options)

    begun(tmp_path, kept("1 MB", 1000))
    for other in (kept("1 MB", None), kept("1 MB", 2000), kept("2 MB", 1000)):
        (sentence,) = refusal(tmp_path, other)
        assert sentence.startswith("step 'r': max_records= was 1000 with memory=1000000, coverage=0.9")


def test_sources_keep_their_partitions_when_parallelism_changes(tmp_path: Path) -> None:
    def generated(parallelism: int, partitions: int | None = None) -> Change:
        source = hr.generate(numbered, rate="1/s", schema=SCHEMA, partitions=partitions)
        return changed(source=source, settings={"parallelism": parallelism})

    begun(tmp_path, generated(2))
    for parallelism in (5, 1):
        assert planned(tmp_path, generated(parallelism)).partitions == {"s": 2}
        settled(tmp_path, generated(parallelism))
    assert planned(tmp_path / "new", generated(5)).partitions == {"s": 5}
    assert refusal(tmp_path, generated(2, 3)) == [f"step 's': number of partitions was 2, and is 3 now; {_BACK}"]


class TestSinks:
    """A sink may be given another directory, but not while the first has rows that nobody else will publish."""

    @staticmethod
    def writing(sink: Any) -> Change:
        return changed(more=lambda job, mapped: mapped.sink("files", sink))

    def test_another_directory_is_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        begun(tmp_path / "checkpoint", self.writing(hr.jsonl(one)))
        settled(tmp_path / "checkpoint", self.writing(hr.jsonl(one, when="as_produced")))
        assert caplog.messages == []
        for sink, place, before in ((hr.jsonl(two), two, one), (hr.parquet(one), one, two)):
            settled(tmp_path / "checkpoint", self.writing(sink))
            (told,) = caplog.messages
            assert told.endswith(f"sink 'files' wrote to {before}, where its rows so far stay, and goes on in {place}")
            caplog.clear()
        settled(tmp_path / "checkpoint", self.writing(hr.rows()))
        assert caplog.messages == []

    @pytest.mark.parametrize(
        "left", ["_staging/c1/part-00000.jsonl", "live-c1-00000.jsonl", "_published/part-c1-00000.arrow"]
    )
    def test_rows_that_wait_to_be_published_are_not_left_behind(self, left: str, tmp_path: Path) -> None:
        one, two, checkpoint = tmp_path / "one", tmp_path / "two", tmp_path / "checkpoint"
        begun(checkpoint, self.writing(hr.jsonl(one)))
        (one / left).parent.mkdir(parents=True, exist_ok=True)
        (one / left).touch()
        assert refusal(checkpoint, self.writing(hr.jsonl(two))) == [
            f"sink 'files' wrote to {one}, where rows are not published yet, and writes to {two} now; run the job once more "
            f"with {one} until it is stopped, then change it"
        ]
        settled(checkpoint, self.writing(hr.jsonl(one)))
        (one / left).unlink()
        settled(checkpoint, self.writing(hr.jsonl(two)))

    def test_a_checkpoint_that_is_moved_takes_its_rows_along(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        begun(tmp_path / "here", self.writing(hr.rows()))
        (tmp_path / "here").rename(tmp_path / "there")
        (tmp_path / "link").symlink_to(tmp_path / "there")
        for place in ("there", "link"):
            settled(tmp_path / place, self.writing(hr.rows()))
        assert caplog.messages == []


def test_the_identity_grows_with_the_job(tmp_path: Path) -> None:
    begun(tmp_path)
    settled(tmp_path, changed(more=with_reduce))

    def other(job: hr.Job, mapped: Any) -> None:
        mapped.key_by("k").window(hr.session_window("2 s")).reduce(name="new", n=hr.count()).sink("new-out", out())

    assert refusal(tmp_path, changed(more=other)) == [
        f"step 'new': window was sessions with a gap of 1 s, and is sessions with a gap of 2 s now; {_AFRESH}"
    ]


def test_what_is_refused_can_be_done_under_another_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path)
    grown = settled(tmp_path, changed(window=hr.tumbling("60 ms"), reduce_name="r2"))
    assert "step 'r' is left out; its state (reduce) stays, unread" in caplog.text
    assert {*grown.retired} == {"r"} and "r2" in grown.steps


def test_a_step_may_come_back_until_the_job_has_gone_on(tmp_path: Path) -> None:
    begun(tmp_path, changed(more=with_reduce))
    settled(tmp_path)
    settled(tmp_path, changed(more=with_reduce))  # the run without it never came to a cut
    settled(tmp_path)
    a_cut_follows(tmp_path)
    assert refusal(tmp_path, changed(more=with_reduce)) == [
        "step 'new' was left out of the job for a time, so its state lacks the records since then; give the step another "
        "name, under which it starts without state"
    ]
    settled(tmp_path)


def test_a_step_that_comes_back_has_to_be_the_one_it_was(tmp_path: Path) -> None:
    begun(tmp_path, changed(more=with_reduce))
    settled(tmp_path)

    def other(job: hr.Job, mapped: Any) -> None:
        mapped.key_by("v").window(hr.session_window("1 s")).reduce(name="new", n=hr.count()).sink("new-out", out())

    assert refusal(tmp_path, changed(more=other)) == [f"step 'new': key was k, and is v now; {_AFRESH}"]


def test_who_runs_the_job_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A command shows what its run's journal has, not the log."""
    begun(tmp_path, changed(more=with_reduce))
    told: list[tuple[str, str]] = []
    settle_identity(LocalStorage(tmp_path / "headrace"), planned(tmp_path), lambda *words: told.append(words))
    assert told == [("checkpoint", f"{tmp_path}: step 'new' is left out; its state (reduce) stays, unread")]
    assert caplog.messages == []


def test_a_source_goes_on_where_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def second(items: int) -> Change:
        def add(job: hr.Job, mapped: Any) -> None:
            job.source("late", scripted(RECORDS[:items], schema=SCHEMA), event_time="t").sink("late-out", out())

        return changed(more=add)

    begun(tmp_path, second(3))
    settled(tmp_path)
    assert caplog.messages.pop().endswith("source 'late' is left out; its position stays, should it come back")
    a_cut_follows(tmp_path)
    settled(tmp_path, second(4))
    assert (
        "source 'late' now reads scripted, 4 items, and goes on from where it was in scripted, 3 items" in caplog.text
    )


def test_a_state_that_is_no_longer_declared_keeps_its_kind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    begun(tmp_path)
    settled(tmp_path, lambda parts: parts.process_options.update(state={"n": hr.value()}))
    assert "step 'p' no longer declares its state 'vs', which stays, unread" in caplog.text
    assert refusal(tmp_path, lambda parts: parts.process_options.update(state={"vs": hr.mapping()})) == [
        "step 'p': its state 'vs' was a queue, and is a mapping now; set it back, or give the new state another name"
    ]


def windows(*sizes: str) -> Callable[[hr.Job, Any], None]:
    def add(job: hr.Job, mapped: Any) -> None:
        for size in sizes:
            step = mapped.key_by("k").window(hr.tumbling(size)).reduce(name=f"w{size[0]}", n=hr.count())
            step.sink(f"{step.name}-out", out())

    return add


def panes_of(plan: JobPlan) -> dict[str, list[str]]:
    nodes = [node for node in plan.graph.nodes if isinstance(node, PaneNode)]
    return {node.name: [reader.name for reader, _ in plan.graph.consumers(node.name)] for node in nodes}


class TestSharedPanes:
    @staticmethod
    def change(*sizes: str, **settings: Any) -> Change:
        return changed(more=windows(*sizes), window=hr.session_window("1 s"), settings=settings)

    def test_steps_go_on_sharing_as_they_did(self, tmp_path: Path) -> None:
        begun(tmp_path, self.change("1 s"))
        alone = planned(tmp_path, self.change("1 s", "2 s"))
        assert panes_of(alone) == {}, "the first has its records in its own panes"
        settle_identity(LocalStorage(tmp_path / "headrace"), alone)
        more = planned(tmp_path, self.change("1 s", "2 s", "4 s", "8 s"))
        assert panes_of(more) == {"w4.panes": ["w4", "w8"]}, "those that are new share among themselves"
        settle_identity(LocalStorage(tmp_path / "headrace"), more)
        swapped = planned(tmp_path, self.change("8 s", "4 s", "1 s", "2 s", "5 s"))
        assert panes_of(swapped) == {"w4.panes": ["w8", "w4"]}
        settle_identity(LocalStorage(tmp_path / "headrace"), swapped)

    def test_panes_are_not_lost_with_a_step(self, tmp_path: Path) -> None:
        begun(tmp_path, self.change("1 s", "2 s"))
        lost = "steps 'w1' and 'w2' share the panes that have not ended, and what"
        assert refusal(tmp_path, self.change("2 s")) == [
            f"{lost} 'w2' has in them would be lost without 'w1'; put 'w1' back (a sink is not needed), or start with a new "
            "checkpoint"
        ]
        (apart,) = refusal(tmp_path, self.change("1 s", "2 s", share=False))
        assert apart.startswith(f"{lost} 'w1' and 'w2' has in them would be lost as they no longer share them")
        settled(tmp_path, self.change())  # all of them gone: nobody misses anything

    def test_a_step_that_shares_no_longer_is_seen(self, tmp_path: Path) -> None:
        begun(tmp_path, self.change("1 s", "2 s"))

        def other(job: hr.Job, mapped: Any) -> None:
            windows("1 s")(job, mapped)
            kept = mapped.key_by("k").window(hr.tumbling("2 s"))
            kept.reduce(name="w2", n=hr.count(), state=hr.keep(memory="1 MB")).sink("w2-out", out())

        change = changed(more=other, window=hr.session_window("1 s"))
        assert panes_of(planned(tmp_path, change)) == {"w1.panes": ["w1"]}
        (apart,) = refusal(tmp_path, change)
        assert "would be lost as they no longer share them (share=False, or an option such as memory=" in apart

    def test_the_order_of_steps_means_nothing(self, tmp_path: Path) -> None:
        def both(*names: str) -> Change:
            def add(job: hr.Job, mapped: Any) -> None:
                for name in names:
                    results: dict[str, Any] = {"a": {"n": hr.count()}, "b": {"v": hr.sum("v")}}[name]
                    step = mapped.key_by("k").window(hr.tumbling("1 s")).reduce(name=name, **results)
                    step.sink(f"{name}-out", out())

            return changed(more=add, window=hr.session_window("1 s"))

        begun(tmp_path, both("a", "b"))
        assert panes_of(planned(tmp_path, both("b", "a"))) == {"a.panes": ["b", "a"]}
        settled(tmp_path, both("b", "a"))
        settled(tmp_path, both("a", "b"))

    def test_a_step_with_state_does_not_run_as_a_new_one(self, tmp_path: Path) -> None:
        def equal(*names: str) -> Change:
            def add(job: hr.Job, mapped: Any) -> None:
                for name in names:
                    step = mapped.key_by("k").window(hr.session_window("2 s")).reduce(name=name, n=hr.count())
                    step.sink(f"{name}-out", out())

            return changed(more=add)

        begun(tmp_path, equal("a"))
        assert settled(tmp_path, equal("earlier", "a", "later")).runs_as == {"later": "a"}
        (alone,) = refusal(tmp_path, equal("earlier", "later", "a"))
        assert alone.startswith("step 'later' ran as 'a', which was the same, and would now start without state")

    def test_a_changed_member_is_said_once(self, tmp_path: Path) -> None:
        begun(tmp_path, self.change("1 s", "2 s"))

        def other(job: hr.Job, mapped: Any) -> None:
            windows("1 s")(job, mapped)
            mapped.key_by("k").window(hr.tumbling("3 s")).reduce(name="w2", n=hr.count()).sink("w2-out", out())

        assert refusal(tmp_path, changed(more=other, window=hr.session_window("1 s"))) == [
            f"step 'w2': window was 2 s every 2 s, and is 3 s every 3 s now; {_BACK}"
        ]

    def test_a_step_that_ran_as_another_does_not_start_empty_unseen(self, tmp_path: Path) -> None:
        def twins(gap: str) -> Change:
            def add(job: hr.Job, mapped: Any) -> None:
                for name, pause in (("a", "1 s"), ("b", gap)):
                    step = mapped.key_by("k").window(hr.session_window(pause)).reduce(name=name, n=hr.count())
                    step.sink(f"{name}-out", out())

            return changed(more=add)

        assert begun(tmp_path, twins("1 s")).runs_as == {"b": "a"}
        assert refusal(tmp_path, twins("2 s")) == [
            "step 'b' ran as 'a', which was the same, and would now start without state; make them the same again, or give "
            "the step another name"
        ]


@pytest.mark.parametrize("how", ["cut", "flip"])
def test_a_damaged_identity_is_named(how: str, tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / "headrace" / "job"
    data = bytearray(path.read_bytes())
    at = data.index(b"0.05 s")
    path.write_bytes(data[:at] if how == "cut" else data[:at] + b"9" + data[at + 1 :])
    with pytest.raises(CorruptionError, match=r"the job's identity \('job' in the checkpoint\) cannot be read"):
        known_identity(tmp_path)


def test_planning_leaves_no_trace(tmp_path: Path) -> None:
    planned(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists() and known_identity(tmp_path / "nothing") is None


class TestColumns:
    """What a step puts out: as before while nothing says otherwise, and more where a function returns more."""

    @staticmethod
    def columns(checkpoint: Path, change: Change, step: str = "m") -> dict[str, str]:
        return {field.name: str(field.type) for field in planned(checkpoint, change).schemas[step]}

    def test_a_function_may_return_more(self, tmp_path: Path) -> None:
        begun(tmp_path)
        more = changed(mapped=lambda r: {"k": r["k"], "v": r["v"], "t": r["t"], "x": 0.5})
        assert self.columns(tmp_path, more) == {"k": "string", "v": "int64", "t": "int64", "x": "double"}

    def test_a_sample_that_lacks_a_column_takes_nothing_away(self, tmp_path: Path) -> None:
        begun(tmp_path)
        for fn in (lambda r: {"k": r["k"], "t": r["t"]}, lambda r: {"k": r["k"], "v": None}, lambda r: 1 / 0):
            assert self.columns(tmp_path, changed(mapped=fn)) == {"k": "string", "v": "int64", "t": "int64"}

    def test_a_type_stays_while_values_fit_it(self, tmp_path: Path) -> None:
        begun(tmp_path, changed(mapped=lambda r: {"k": r["k"], "v": r["v"] / 2, "t": r["t"]}))
        assert self.columns(tmp_path, lambda parts: None)["v"] == "double", "whole numbers fit"
        settled(tmp_path / "other")
        halves = changed(mapped=lambda r: {"k": r["k"], "v": r["v"] / 2, "t": r["t"]})
        assert self.columns(tmp_path / "other", halves)["v"] == "double", "halves do not"

    def test_what_is_declared_counts(self, tmp_path: Path) -> None:
        begun(tmp_path)
        declared = changed(map_options={"returns": {"k": "str", "v": "float", "t": "int"}})
        assert self.columns(tmp_path, declared)["v"] == "double"
        wider = changed(source=scripted(RECORDS, RECORDS, schema=SCHEMA | {"x": "int64"}))
        assert self.columns(tmp_path, wider, "s") == {"k": "string", "v": "int64", "t": "int64", "x": "int64"}

    def test_another_type_is_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def alone(kind: str, **options: Any) -> Change:
            def add(job: hr.Job, mapped: Any) -> None:
                source = job.source("plain", scripted([{"x": 1}], schema={"x": kind}))
                source.filter(lambda r: True, name="all").sink("plain-out", out())

            return changed(more=add)

        begun(tmp_path, alone("int64"))
        settled(tmp_path, alone("double"))
        assert [message.partition(": ")[2] for message in caplog.messages] == [
            f"step {step!r} puts out column 'x' as double now, and rows so far have int64" for step in ("plain", "all")
        ]

    def test_batches_keep_their_order_and_types(self, tmp_path: Path) -> None:
        def job(fn: Callable[[pa.RecordBatch], pa.RecordBatch]) -> hr.Job:
            made = hr.Job("job")
            made.source("s", scripted(RECORDS, schema=SCHEMA)).map_batch(fn, name="b").sink("b-out", out())
            return made

        def columns(fn: Callable[[pa.RecordBatch], pa.RecordBatch]) -> list[tuple[str, str]]:
            plan = plan_job(job(fn), tmp_path, Settings.of())
            settle_identity(LocalStorage(tmp_path / "headrace"), plan)
            return [(field.name, str(field.type)) for field in plan.schemas["b"]]

        assert columns(lambda b: b.select(["k", "v"])) == [("k", "string"), ("v", "int64")]
        assert columns(lambda b: b.select(["t", "v", "k"])) == [("k", "string"), ("v", "int64"), ("t", "int64")]
        assert columns(lambda b: b.slice(0, 0).select(["k"])) == [("k", "string")]


def _early(state: Any) -> bool:
    return False


REDUCES: list[dict[str, Any]] = [
    {"window": window, "results": results, "reduce_options": options}
    for window in (
        None, hr.tumbling("50 ms"), hr.sliding("100 ms", every="50 ms"), hr.versioned(hr.tumbling("50 ms")),
        hr.whole_input(), hr.session_window("1 s"), hr.count_window(3),
    )
    for results in (
        {"n": hr.count()}, {"n": hr.max("v")}, {"n": hr.last("v")}, {"n": _USER},
        {"n": hr.reducer(init=list, update=lambda s, r: s, combine=lambda a, b: a, early=_early)},
        {"n": hr.reducer(init=list, update=lambda s, r: s)},
    )
    for options in (
        {}, {"state": hr.keep(combine=False)}, {"state": hr.keep(memory="1 MB")}, {"state": hr.keep(memory="1 MB", engine="mr")},
        {"state": hr.keep(memory="1 MB", combine=False)}, {"state": hr.keep(memory="2 MB", engine="dinc")},
        {"emit": hr.at_least(n=3)},
    )
]  # fmt: skip


def stored_by(plan: JobPlan) -> dict[str, Any]:
    """The columns of what a reduce stores, part by part, as its stores have them."""
    node = plan.graph.by_name["r"]
    assert isinstance(node, ReduceNode)
    schema, columns = plan.schema_into("r"), plan.schemas["r"]
    made = build_reduce(node, schema, columns, Guard("r", "fail"), Place(4), eager=True)
    try:
        return {
            part: next(
                (getattr(store, name) for name in ("partial_schema", "_stored_schema") if hasattr(store, name)), None
            )
            for part, store in made.stores().items()
        }
    finally:
        made.close()


def test_whatever_is_allowed_finds_its_state(tmp_path: Path) -> None:
    """Of all pairs of reduces: if one may become the other, that one reads every part which the first has stored."""
    made = []
    for reduce in REDUCES:
        try:
            plan = planned(tmp_path, lambda parts, reduce=reduce: parts.__dict__.update(reduce))  # type: ignore[misc]
        except (hr.GraphError, hr.SchemaError):
            continue
        made.append((identity(plan), stored_by(plan)))
    assert len(made) > 100
    allowed = 0
    for known, stored in made:
        for now, read in made:
            if not any(found.refused for found in differences(known, now, 1)):
                allowed += 1
                assert stored.items() <= read.items(), (known.steps["r"], now.steps["r"])
    assert allowed > 2 * len(made), "not only to itself"


def test_nothing_is_logged_where_nothing_differs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    begun(tmp_path)
    before = (tmp_path / "headrace" / "job").stat().st_mtime_ns
    settled(tmp_path)
    assert (tmp_path / "headrace" / "job").stat().st_mtime_ns == before and caplog.messages == []
