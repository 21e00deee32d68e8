"""What goes wrong in a first hour: what was written, and the words that it is answered with.

Whatever can be known before Spark starts is said before: here is no Java, which whoever comes so far is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from typer.testing import Result

import headrace as hr
from headrace import ConfigError, GraphError, SchemaError, UnitError
from headrace.testing import LocalRun, run_local

SHOP = """\
import headrace as hr

job = hr.Job("shop")
visits = job.source("visits", hr.replay("visits.csv"), event_time="at", lateness="10 min")
orders = job.source("orders", hr.replay("orders.jsonl"), event_time="at", lateness="1 min")
payments = job.source("payments", hr.replay("payments.jsonl"), event_time="at", lateness="1 min")
"""
MINUTES = 'visits.key_by("user").window(hr.tumbling("1 min"))'
KNOWN = "parallelism, chain, latency, on_error, returns, deterministic"
MAKE_IT_THERE = (
    "make it inside the function, or once in each worker: in a function without arguments under @functools.cache, "
    "called where it is needed"
)
Mistake = tuple[str, type[Exception], str]

MISTAKES: dict[str, Mistake] = {
    # Habits from DataFrames.
    "groupBy": (
        'visits.groupBy("user")', AttributeError, "'Stream' object has no attribute 'groupBy'; here it is .key_by('column')",
    ),
    "withWatermark": (
        'visits.withWatermark("at", "10 minutes")', AttributeError,
        "'Stream' object has no attribute 'withWatermark'; here it is job.source(…, event_time='column', lateness='10 s')",
    ),
    "agg": (
        'visits.key_by("user").agg(n=hr.count())', AttributeError,
        "'KeyedStream' object has no attribute 'agg'; here it is .key_by('column').reduce(n=hr.count())",
    ),
    "avg": (
        f'{MINUTES}.reduce(mean=hr.avg("seconds"))', AttributeError,
        "module 'headrace' has no attribute 'avg'; here it is hr.mean",
    ),
    "the watermark as an option": (
        'job.source("more", hr.replay("visits.csv"), event_time="at", watermark="10 min")', GraphError,
        f"step 'more': unknown option 'watermark'; known: event_time, time_unit, lateness, idle, {KNOWN}",
    ),
    "checkpointLocation": (
        'visits.sink("out", hr.jsonl("out"))\nhr.run(job, checkpointLocation="state")', ConfigError,
        "unknown setting 'checkpointLocation' (did you mean 'checkpoint'?); known: " + ", ".join(sorted(hr.RunOptions.__annotations__)),
    ),
    "a stream in place of its job": (
        "hr.run(visits)", GraphError,
        "what runs is a job, hr.Job(name), or a list of jobs, not <Stream 'visits' of job 'shop'>",
    ),
    "an expression in place of a function": (
        'visits.filter("seconds > 5")', GraphError, "filter after 'visits' needs a function, not 'seconds > 5'",
    ),
    "a path in place of a source": (
        'job.source("more", "visits.csv")', GraphError,
        "source 'more' needs a source such as hr.replay('clicks.jsonl'), not 'visits.csv'",
    ),
    "a path in place of a sink": (
        'visits.sink("out", "out/")', GraphError, "sink 'out' needs a sink such as hr.jsonl('out/'), not 'out/'",
    ),
    "an object store": (
        'visits.sink("out", hr.jsonl("out"))\nhr.run(job, checkpoint="s3://bucket/state")', ConfigError,
        "checkpoint 's3://bucket/state': s3 is not supported; give a directory, without a scheme or with file://, that "
        "the driver and all executors see, such as one on NFS",
    ),
    "a cluster without its scheme": (
        'visits.sink("out", hr.jsonl("out"))\nhr.run(job, master="localhost:7077")', ConfigError,
        "master 'localhost:7077' is not one of local[n], local-cluster[…], spark://…, yarn, k8s://…",
    ),
    # Columns and files.
    "an unknown key": (
        'visits.key_by("usr").window(hr.tumbling("1 min")).reduce(name="n", n=hr.count()).sink("out", hr.rows())',
        SchemaError, "step 'n': key column 'usr' is not among user, at, page, seconds",
    ),
    "an unknown column": (
        f'{MINUTES}.reduce(name="spent", s=hr.sum("second")).sink("out", hr.rows())', SchemaError,
        "step 'spent': s=sum(second) reads column 'second', which is not among user, at, page, seconds",
    ),
    "a sum of text": (
        f'{MINUTES}.reduce(name="spent", s=hr.sum("page")).sink("out", hr.rows())', SchemaError,
        "step 'spent': s=sum(page) needs a numeric column, but 'page' is string",
    ),
    "an unknown event time": (
        'job.source("more", hr.replay("visits.csv"), event_time="ts").sink("out", hr.rows())', SchemaError,
        "source 'more': event-time column 'ts' is not among user, at, page, seconds",
    ),
    "a window without event time": (
        'more = job.source("more", hr.replay("visits.csv"))\n'
        'more.key_by("user").window(hr.tumbling("1 s")).reduce(name="n", n=hr.count()).sink("out", hr.rows())', GraphError,
        "step 'n' has an event-time window, but source 'more' has no event time; give it one: job.source('more', ..., "
        "event_time='column')",
    ),
    "a missing file": (
        'job.source("more", hr.replay("absent.csv")).sink("out", hr.rows())', ConfigError,
        "replay: no such file: {here}/absent.csv; give an existing file, a directory of files or a glob",
    ),
    "a missing directory": (
        'job.source("more", hr.files("incoming")).sink("out", hr.rows())', ConfigError,
        "files: no such directory: {here}/incoming; create it before the job starts",
    ),
    "a file of unknown format": (
        'job.source("more", hr.replay("visits.dat")).sink("out", hr.rows())', ConfigError,
        "cannot tell the format of {here}/visits.dat; give format= one of jsonl, csv, lines, parquet",
    ),
    "no header and no schema": (
        'job.source("more", hr.replay("headless.csv", header=False))', ConfigError,
        "replay: without a header line nothing names the columns; declare all, in the order they stand in: "
        "schema={{'ts': 'int64', …}}",
    ),
    "a union of different columns": (
        'orders.union(payments, name="all").sink("out", hr.rows())', SchemaError,
        "union 'all': its inputs have different columns: order, customer, amount, at and order, paid, at; give them the "
        "same ones with map or map_batch",
    ),
    # Times.
    "a wrong unit": (
        'visits.key_by("user").window(hr.tumbling("10 parsecs"))', UnitError,
        "window size '10 parsecs' is not a duration; write for example '200 ms' or '5 s'",
    ),
    "no unit": (
        'hr.tumbling("10")', UnitError, "window size '10' is not a duration; write for example '200 ms' or '5 s'",
    ),
    "a unit of the clock that is none": (
        'job.source("more", hr.replay("visits.csv"), event_time="at", time_unit="seconds")', GraphError,
        "source 'more': time_unit='seconds' is not 's', 'ms', 'us' or 'ns'",
    ),
    "a slide that leaves gaps": (
        'hr.sliding("1 s", every="10 s")', GraphError,
        "window slide '10 s' is longer than its size '1 s': records in between would be lost",
    ),
    "seconds of nonsense": (
        'visits.sink("out", hr.rows())\nhr.run(job, seconds="soon")', UnitError,
        "seconds 'soon' is not a duration; write for example '200 ms' or '5 s'",
    ),
    "a ttl of nonsense": (
        'hr.value(ttl="a while")', UnitError, "ttl 'a while' is not a duration; write for example '200 ms' or '5 s'",
    ),
    "a ttl of nothing": (
        "hr.value(ttl=0)", GraphError, "hr.value: ttl=0 must be more than zero; leave it out to keep state for ever",
    ),
    # Windows and reduces.
    "a window without a key": (
        'visits.window(hr.tumbling("1 min"))', AttributeError,
        "window after 'visits' needs a key first: .key_by('column').window(…)",
    ),
    "a window that is text": (
        'visits.key_by("user").window("10 s")', GraphError,
        "window after 'visits' needs a window such as hr.tumbling('10 s'), not '10 s'",
    ),
    "a window by its old name": (
        'hr.session("30 min")', AttributeError, "module 'headrace' has no attribute 'session'; it is now hr.session_window",
    ),
    "an option of before": (
        f'{MINUTES}.reduce(name="n", n=hr.count(), late="drop")', GraphError,
        "reduce 'n': late= is not beside the result columns but in overload=hr.shed()",
    ),
    "a reducer that is not called": (
        f'{MINUTES}.reduce(name="n", n=len)', GraphError,
        "reduce 'n': n=<built-in function len> is not a reducer such as hr.count()",
    ),
    "a key named window_start": (
        'visits.key_by("window_start").window(hr.tumbling("1 min")).reduce(name="n", n=hr.count())', GraphError,
        "reduce 'n': its key 'window_start' has the name of a column that the step adds itself; rename it before key_by: "
        "map(lambda record: {{'start': record.pop('window_start'), **record}})",
    ),
    "late records of no window": (
        'visits.late().sink("out", hr.rows())', GraphError, "late() after 'visits': only a windowed reduce or join has late records; ask that step",
    ),
    # Joins and lookups.
    "a join without a bound": (
        'orders.key_by("order").join(payments.key_by("order"), name="both")', GraphError,
        "join 'both' needs to know which records meet: those whose times are near, left.key_by(...).join(right, "
        "within='1 min'), or those of a window, left.key_by(...).window(hr.tumbling('10 s')).join(right)",
    ),
    "a join with on=": (
        'orders.key_by("order").join(payments.key_by("order"), on="order", within="1 min", name="both")', GraphError,
        f"step 'both': unknown option 'on'; known: within, before, after, how, state, {KNOWN}",
    ),
    "a join with one key only": (
        'orders.key_by("order").join(payments, within="1 min", name="both")', GraphError,
        "join 'both': the other side needs a key too: join(other.key_by('column')), not <Stream 'payments' of job 'shop'>",
    ),
    "a join as Spark calls it": (
        'orders.key_by("order").join(payments.key_by("order"), within="1 min", how="leftouter", name="both")', GraphError,
        "join 'both': how='leftouter' is not inner, left, right, outer or full",
    ),
    "a lookup in a path": (
        'orders.lookup("rates.csv", on="currency", name="rated")', GraphError,
        "lookup 'rated' needs a table such as hr.table('rates.parquet', key='currency'), not 'rates.csv'",
    ),
    "a lookup of a missing column": (
        'orders.lookup(hr.table("rates.csv", key="currency"), name="rated").sink("out", hr.rows())', SchemaError,
        "lookup 'rated': column 'currency' is not among order, customer, amount, at",
    ),
    "a table without its key": (
        'orders.lookup(hr.table("rates.csv", key="code"), on="order", name="rated").sink("out", hr.rows())', SchemaError,
        "table {here}/rates.csv: key column 'code' is not among currency, rate",
    ),
    # Functions.
    "a lock in a closure": (
        """
        import threading
        lock = threading.Lock()
        def guarded(visit):
            with lock:
                return visit
        visits.map(guarded, name="guarded").sink("out", hr.rows())
        """, GraphError,
        "step 'guarded': its function uses 'lock', a _thread.lock, which cannot be sent to workers (cannot pickle "
        f"'_thread.lock' object); {MAKE_IT_THERE}",
    ),
    "an error on samples": (
        'visits.map(lambda visit: {"n": visit["clicks"]}, name="clicks").sink("out", hr.rows())', SchemaError,
        "step 'clicks' failed on sample records at app.py:7 in <lambda>: visits.map(lambda visit: {{\"n\": "
        'visit["clicks"]}}, name="clicks").sink("out", hr.rows()) (KeyError: \'clicks\'); fix the function, or declare '
        "its columns: returns={{'column': 'int64', ...}}",
    ),
    "a value in place of a record": (
        'visits.map(lambda visit: visit["page"], name="pages").sink("out", hr.rows())', SchemaError,
        "step 'pages' must return records (mappings), not str: 'home'",
    ),
    "a type that is none": (
        'visits.map(dict, name="same", returns={"n": "number"})', SchemaError,
        "step 'same': returns={{'n': 'number'}}: column 'n': 'number' is not an Arrow type such as 'int64' or 'string'",
    ),
    "a state that is not called": (
        'orders.key_by("order").process(print, state={"seen": hr.value}, name="p")', GraphError,
        "process 'p': state 'seen' must be hr.value(), hr.queue() or hr.mapping()",
    ),
    "a callback that wants a version too early": (
        'orders.sink("out", hr.callback(lambda rows, version: None))', ConfigError,
        "callback: <lambda> takes rows and their version, which they have once it is logged: say when='on_commit'",
    ),
    "a callback of one argument too many": (
        'orders.sink("out", hr.callback(lambda rows, version, more: None, when="on_commit"))', ConfigError,
        "callback: with when='on_commit' it is called as fn(rows, version) or fn(rows), and <lambda> cannot be: missing a "
        "required argument: 'more'",
    ),
    "a callback of no argument": (
        "orders.sink('out', hr.callback(lambda: None))", ConfigError,
        "callback: with when='as_produced' it is called as fn(rows), and <lambda> cannot be: too many positional arguments",
    ),
    # Sinks, bounds, options of a run.
    "no sink": ("hr.run(job)", GraphError, "job 'shop' has no sink; add .sink(name, hr.jsonl('out/')) to a stream"),
    "a name that is taken": (
        'visits.map(dict, name="orders")', GraphError,
        "job 'shop' already has a step 'orders'; a name is the key of a step's state: choose another",
    ),
    "a directory with other results": (
        'visits.sink("out", hr.jsonl("used"))', ConfigError,
        "{here}/used has results of another checkpoint or another sink; go on with that checkpoint, remove the results, "
        "or give each sink and each new checkpoint a directory of its own",
    ),
    "two sinks in one directory": (
        'visits.sink("all", hr.jsonl("out"))\norders.sink("more", hr.jsonl("out"))', ConfigError,
        "sinks 'all' and 'more' both write to {here}/out; give each a directory of its own",
    ),
    "results into a file": (
        'visits.sink("out", hr.jsonl("visits.csv"))', ConfigError,
        "{here}/visits.csv is a file; a sink needs a directory for its results: name another",
    ),
    "a checkpoint in a file": (
        'visits.sink("out", hr.rows())\nhr.run(job, checkpoint="visits.csv")', ConfigError,
        "checkpoint 'visits.csv' is a file; give a directory, which need not be there yet",
    ),
    "Parquet as it is produced": (
        'hr.parquet("out", when="as_produced")', ConfigError,
        "parquet: a Parquet file cannot be read before it is complete; use when='on_commit' or jsonl",
    ),
    "a bound of nothing": (
        'job.constrain(visits >> orders, p99="0 ms")', GraphError,
        "constrain(visits >> orders): the bound and over= must be more than zero",
    ),
    "a bound against the stream": (
        'more = visits.map(dict, name="more").sink("out", hr.rows())\njob.constrain(more >> visits, p99="10 ms")', GraphError,
        "constraint more → visits: p99 ≤ 10 ms over 5 s: no path leads from 'more' to 'visits'; constrain a path of "
        "connected steps, upstream >> downstream",
    ),
    "a mode that is none": (
        'visits.sink("out", hr.rows())\nhr.run(job, mode="streaming")', ConfigError,
        "mode 'streaming' is not one of realtime, microbatch, batch",
    ),
    "commit in batch mode": (
        'visits.sink("out", hr.rows())\nhr.run(job, mode="batch", commit="5 s")', ConfigError,
        "commit has no effect in batch mode, where each batch has one cut, at its end; leave it out, or use "
        "mode='realtime' for it",
    ),
    "a trigger in realtime mode": (
        'visits.sink("out", hr.rows())\nhr.run(job, trigger="5 s")', ConfigError,
        "trigger has no effect in realtime mode, where one batch is all there is; leave it out, or use mode='microbatch' "
        "for it",
    ),
    "a standby of nobody": (
        'visits.sink("out", hr.rows())\nhr.run(job, standby=True)', ConfigError,
        "a standby needs the checkpoint of the driver that it stands by for: checkpoint=…",
    ),
    "endless input in batch mode": (
        'job.source("all", hr.generate(lambda n: {"n": n})).sink("out", hr.rows())\nhr.run(job, mode="batch")', GraphError,
        "source 'all' never ends, so batch mode would not either; bound it or use another mode",
    ),
    "rows of several sinks": (
        'visits.sink("a", hr.rows())\norders.sink("b", hr.rows())\npayments.sink("c", hr.rows())\nhr.collect(job)', GraphError,
        "the job has 3 ends, a, b, c: ask for all, hr.collect(job, by_sink=True)",
    ),
    "state of nothing": (
        'hr.read_state("nowhere", "n")', ConfigError, "nowhere is not the checkpoint of a Headrace job",
    ),
    "nothing wrong": (
        'visits.sink("out", hr.jsonl("out"))', hr.EnvironmentMissingError,
        "JAVA_HOME is /nonexistent, but there is no bin/java in it: install OpenJDK 17 or 21 (for example 'apt-get "
        "install openjdk-17-jre-headless') or set JAVA_HOME to one.",
    ),
}  # fmt: skip


def run_app(path: Path, wrote: str) -> None:
    """As ``python app.py``: the shop, what was written, and a run of the job if it has none."""
    wrote = dedent(wrote).strip()
    text = f"{SHOP}{wrote}\n" + ("" if "hr.run(" in wrote or "hr.collect(" in wrote else "hr.run(job)\n")
    path.write_text(text)
    exec(compile(text, str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_spark_starts(mistake: str, here: Path) -> None:
    wrote, kind, words = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        run_app(here / "app.py", wrote)
    assert str(caught.value) == words.format(here=here) and type(caught.value) is kind


def test_a_first_line_that_is_a_record_is_doubted(here: Path) -> None:
    with pytest.warns(UserWarning) as warned, pytest.raises(hr.SchemaError, match="'at' is not among ann, 2026-03-02"):
        run_app(here / "app.py", 'job.source("more", hr.replay("headless.csv"), event_time="at").sink("o", hr.rows())')
    assert str(warned[0].message) == (
        f"{here}/headless.csv: its first line names the columns, and '2026-03-02T09:00:00Z' looks like a value; if that line "
        "is a record already, give header=False and declare all columns: schema={'ts': 'int64', …}"
    )


# Mistakes that show when records come.


def visits_job(path: str = "visits.csv", **options: Any) -> tuple[hr.Job, hr.Stream]:
    job = hr.Job("visits")
    schema = {"user": "string", "at": "string", "page": "string", "seconds": "int64"}
    return job, job.source("visits", hr.replay(path, schema=schema), **{"event_time": "at", **options})


def test_a_bad_line_is_named_with_its_file(here: Path) -> None:
    job, visits = visits_job("broken.csv")
    visits.sink("out", hr.rows())
    with pytest.raises(hr.DataError) as caught:
        run_local(job)
    assert str(caught.value).splitlines() == [
        f"source 'visits' read something that is not a record, in {here}/broken.csv, line 5: column 'seconds': 'five' is "
        "not int64",
        "  input: bob,2026-03-02T09:45:00Z,home,five",
        "  repair the input, or let the job go on without it: hr.Job(…, on_error='skip') counts such records, "
        "dead_letter=hr.jsonl('bad/') keeps them",
    ]


def test_a_function_that_fails_is_named_with_record_and_line(here: Path) -> None:
    def share(visit: hr.Record) -> hr.Record:
        return {"share": 60 // (visit["seconds"] - 30)}

    job, visits = visits_job()
    visits.map(share, name="share", returns={"share": "int64"}).sink("out", hr.rows())
    with pytest.raises(hr.UserCodeError) as caught:
        run_local(job)
    assert caught.value.step == "share" and "'user': 'bob'" in caught.value.record
    assert caught.value.cause == "ZeroDivisionError: integer division or modulo by zero"
    assert caught.value.line.endswith('in share: return {"share": 60 // (visit["seconds"] - 30)}')


# A job that has become another, on the checkpoint that it had.

ALLOWED = (
    "What may change on a checkpoint: functions, bounds, parallelism, mode, lateness, ttl=, memory= within a bound, where "
    "sources read and sinks write; steps, states and sinks may be added and left out."
)
BEFORE = 'visits.key_by("user").window(hr.tumbling("1 min")).reduce(name="spent", s=hr.sum("seconds")).sink("out", hr.rows())'
AFRESH = "set it back, or give the step another name, under which it starts without state"
CHANGED: dict[str, tuple[str, str]] = {
    "another window": (
        BEFORE.replace("1 min", "5 min"), f"step 'spent': window was 60 s every 60 s, and is 300 s every 300 s now; {AFRESH}",
    ),
    "another key": (BEFORE.replace("user", "page"), f"step 'spent': key was user, and is page now; {AFRESH}"),
    "another name": (
        BEFORE.replace("spent", "seconds"),
        "step 'spent' seems to be called 'seconds' now, and would start without state; call it 'spent' again "
        "(name='spent'); if that is what you want, run the job once without 'seconds'",
    ),
    "another type": (
        BEFORE.replace("visits.key_by", 'visits.map(lambda v: {**v, "seconds": v["seconds"] / 1}, name="exact").key_by'),
        f"step 'spent': column 'seconds' of its input was int64, and is double now; {AFRESH}",
    ),
}  # fmt: skip


@pytest.fixture
def checkpoint(here: Path) -> Iterator[Path]:
    """What a run of the job has left."""
    names: dict[str, Any] = {}
    exec(SHOP + BEFORE, names)
    run = LocalRun(names["job"], here / "state", mode="batch", slices=64)
    run.run()
    run.close()
    yield here / "state"


@pytest.mark.parametrize("change", CHANGED)
def test_what_does_not_fit_a_checkpoint_is_told_before_spark_starts(change: str, checkpoint: Path, here: Path) -> None:
    wrote, words = CHANGED[change]
    with pytest.raises(hr.StateError) as caught:
        run_app(here / "app.py", f"{wrote}\nhr.run(job, checkpoint='state', slices=64)")
    assert str(caught.value) == f"the job does not fit checkpoint {checkpoint}:\n  - {words}\n{ALLOWED}"


def test_a_checkpoint_of_another_job(checkpoint: Path, here: Path) -> None:
    with pytest.raises(
        hr.StateError, match="it belongs to job 'shop', and this is job 'other'; call the job 'shop' again"
    ):
        other = 'other = hr.Job("other")\nother.source("v", hr.replay("visits.csv")).sink("out", hr.rows())\n'
        run_app(here / "app.py", f"{other}hr.run(other, checkpoint='state')")


def test_what_fits_a_checkpoint_comes_as_far_as_spark(checkpoint: Path, here: Path) -> None:
    with pytest.raises(hr.EnvironmentMissingError):
        run_app(here / "app.py", f"{BEFORE}\nhr.run(job, checkpoint='state', slices=64, parallelism=3)")


# The command line.

USAGE: dict[str, tuple[list[str], int, str]] = {
    "no such file": (["run", "absent.py"], 2, "no file absent.py"),
    "no job in it": (["explain", "empty.py"], 2, "must have one job"),
    "a wrong time": (["run", "app.py", "--commit", "soon"], 2, "--commit 'soon' is not a duration; write for example '200 ms'"),
    "a wrong mode": (["run", "app.py", "--mode", "streaming"], 2, "'streaming' is not one of"),
    "commit in batch mode": (
        ["run", "app.py", "--mode", "batch", "--commit", "5 s"], 2,
        "commit has no effect in batch mode, where each batch has one cut, at its end",
    ),
    "strict in batch mode": (
        ["run", "app.py", "--mode", "batch", "--strict"], 2,
        "--strict: constraints are kept in realtime mode only, not in batch mode",
    ),
    "state of no checkpoint": (["state", "ls", "used"], 2, "used is not the checkpoint of a Headrace job"),
    "an error in the app": (
        ["run", "wrong.py"], 1,
        "error: wrong.py could not be loaded: AttributeError: window after 'visits' needs a key first: "
        ".key_by('column').window(…) (line 7)",
    ),
    "no Java": (["run", "app.py"], 1, "error: JAVA_HOME is /nonexistent, but there is no bin/java in it"),
    "a bound that cannot be met": (
        ["explain", "app.py", "--rate", "100/s"], 0, "cannot be met; the smallest p99 that could is 659,400 ms",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", USAGE)
def test_the_command_says_what_to_do(mistake: str, headrace: Callable[..., Result], here: Path) -> None:
    bounded = f'{MINUTES}.reduce(name="n", n=hr.count(), latency="read-write").sink("out", hr.jsonl("out"))'
    (here / "app.py").write_text(f'{SHOP}n = {bounded}\njob.constrain(visits >> n, p99="1 ms")\n')
    (here / "wrong.py").write_text(f'{SHOP}visits.window(hr.tumbling("1 min"))\n')
    (here / "empty.py").write_text("import headrace as hr\n")
    arguments, code, words = USAGE[mistake]
    done = headrace(*arguments)
    assert done.exit_code == code, done.output
    assert words in " ".join(done.output.replace("│", " ").split())
    assert "Traceback" not in done.output
