"""Lookups: records and a small table, read again while the job runs; one edition between two cuts, also after restarts."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from acts import InActs
from reference import Record, Row

import headrace as hr
from headrace.config import Settings
from headrace.connect.writing.arrows import read_arrow
from headrace.driver import hands
from headrace.driver.planning import plan_job
from headrace.driver.protocol.events import Remove, Say
from headrace.driver.protocol.tablereading import Editions
from headrace.driver.publishing import publish
from headrace.errors import CorruptionError
from headrace.runtime.plan import JobPlan
from headrace.state.durable.editions import (
    EditionRead,
    edition_stem,
    get_edition,
    left_behind,
    put_edition,
)
from headrace.state.durable.manifest import Manifest
from headrace.state.durable.storage import LocalStorage
from headrace.testing import LocalRun, run_local, scripted
from headrace.tokens import Token

MODES = ("realtime", "microbatch", "batch")
PAID = [{"id": i, "currency": code, "amount": 10 * i} for i, code in enumerate(["EUR", "USD", "XXX", None, "USD"])]
RATES = [{"currency": "EUR", "rate": 1.0}, {"currency": "USD", "rate": 0.9}, {"currency": None, "rate": 0.0}]


def looked_up(table: Any, records: list[Record] = PAID, *, mode: str = "realtime", **how: Any) -> list[Row]:
    job = hr.Job("payments")
    job.source("paid", scripted(records)).lookup(table, name="rated", **how).sink("out", hr.rows())
    return sorted(run_local(job, mode=mode)["out"], key=lambda row: row["id"])  # type: ignore[arg-type]


# What a lookup gives.


@pytest.mark.parametrize("mode", MODES)
def test_records_get_the_columns_of_their_row(mode: str) -> None:
    table = hr.table(lambda: RATES, key="currency")
    kept = looked_up(table, how="left", mode=mode)
    assert [(row["id"], row["rate"]) for row in kept] == [(0, 1.0), (1, 0.9), (2, None), (3, None), (4, 0.9)]
    assert looked_up(table, mode=mode) == [row for row in kept if row["rate"] is not None]


def test_columns_of_one_name_and_keys_of_another() -> None:
    rows = [{"code": "EUR", "id": "a", "name": "Euro"}, {"code": "USD", "id": "b", "name": "Dollar"}]
    first = looked_up(hr.table(lambda: rows, key="code"), on="currency")[0]
    assert first == {"id": 0, "currency": "EUR", "amount": 0, "id_right": "a", "name": "Euro"}


def test_keys_of_several_columns() -> None:
    rows = [{"a": i % 2, "b": i // 2, "sum": i} for i in range(4)]
    records = [{"id": i, "a": i % 2, "b": i // 2} for i in range(6)]
    found = looked_up(hr.table(lambda: rows, key=["a", "b"]), records)
    assert [row["sum"] for row in found] == [0, 1, 2, 3]


def test_keys_are_compared_as_the_stream_has_them() -> None:
    rows = pa.table({"id": pa.array([0, 4], pa.int8()), "n": [5, 6]})
    assert [row["n"] for row in looked_up(hr.table(lambda: rows, key="id"))] == [5, 6]


def test_later_steps_see_values_of_the_table_when_their_columns_are_found() -> None:
    job = hr.Job("payments")
    paid = job.source("paid", scripted(PAID)).lookup(hr.table(lambda: RATES, key="currency"))
    paid.map(lambda row: {"in_euro": row["amount"] * row["rate"]}).sink("out", hr.rows())
    assert sorted(row["in_euro"] for row in run_local(job)["out"]) == [0.0, 9.0, 36.0]


@pytest.mark.parametrize("made", [list, pa.Table.from_pylist, pa.RecordBatch.from_pylist])
def test_functions_return_arrow_or_records(made: Callable[[list[Row]], Any]) -> None:
    assert len(looked_up(hr.table(lambda: made(RATES), key="currency"))) == 3


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_files_are_read_as_sources_read_them(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rates.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(RATES), path)
    else:
        lines = {"csv": "currency,rate\nEUR,1.0\nUSD,0.9\n", "jsonl": '{"currency": "EUR", "rate": 1.0}\n'}
        path.write_text(lines[suffix])
    assert looked_up(hr.table(path, key="currency"))[0]["rate"] == 1.0


def test_an_empty_table_has_no_row_for_anybody() -> None:
    table = hr.table(list, key="currency", schema={"currency": "string", "rate": "float64"})
    assert looked_up(table) == []
    assert [row["rate"] for row in looked_up(table, how="left")] == [None] * 5


# What is refused before anything starts.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": []}, "key=.* must name one or more different columns"),
        ({"key": "currency", "refresh": 0}, "refresh= must be more than zero"),
        ({"key": "currency", "format": "csv"}, "format='csv' is about files"),
    ],
)
def test_tables_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(hr.ConfigError, match=words):
        hr.table(lambda: RATES, **options)
    with pytest.raises(hr.ConfigError, match="is no path and no function; for rows at hand use lambda: rows"):
        hr.table(RATES, key="currency")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"how": "outer"}, "lookup 'rated': how='outer' is not 'inner' or 'left'"),
        ({"on": ["currency", "id"]}, "lookup 'rated': on=.* one column for each key of the table: currency"),
    ],
)
def test_lookups_that_make_no_sense_are_refused(options: Any, words: str) -> None:
    with pytest.raises(hr.GraphError, match=words):
        looked_up(hr.table(lambda: RATES, key="currency"), **options)
    with pytest.raises(hr.GraphError, match=r"lookup 'rated' needs a table such as hr.table\("):
        looked_up(RATES)


def raises() -> list[Row]:
    raise RuntimeError("no route to host")


@pytest.mark.parametrize(
    ("table", "on", "words"),
    [
        (lambda: RATES, "place", "lookup 'rated': column 'place' is not among id, currency, amount"),
        (lambda: RATES, "id", "column 'id' is int64, but key 'currency' of table .* is string; give both one type"),
        (lambda: [{"code": "EUR"}], None, "key column 'currency' is not among code"),
        (lambda: RATES * 2, None, "more than one row for currency='EUR'"),
        (lambda: 5, None, "must return a pyarrow.Table or a list of records, not int"),
        (raises, None, r"table raises\(\): RuntimeError: no route to host"),
        ("nowhere.csv", None, "table: no such file: .*nowhere.csv; give"),
    ],
)
def test_what_does_not_fit_is_found_when_the_job_is_planned(table: Any, on: str | None, words: str) -> None:
    with pytest.raises(hr.HeadraceError, match=words):
        looked_up(hr.table(table, key="currency"), on=on)


def test_a_table_without_a_sound_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rates.jsonl").write_text('{"currency": "EUR", "rate": 1.0}\n{"currency": "USD"\n')
    with pytest.raises(hr.DataError, match=r"table: .*rates.jsonl, line 2 is no record.*; repair it"):
        looked_up(hr.table(tmp_path / "rates.jsonl", key="currency"))


def test_what_reads_the_table_stays_in_the_driver() -> None:
    lock = threading.Lock()

    def rates() -> list[Row]:
        with lock:
            return RATES

    table = hr.table(rates, key="currency", refresh="5 s")
    shipped = pickle.loads(pickle.dumps(table))
    assert shipped.source is None and (shipped.key, shipped.refresh_us) == (table.key, table.refresh_us)
    assert table.describe().endswith("rates() by currency, read every 5 s")


# While it runs.


def in_acts(*parts: list[list[Record]]) -> InActs:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    return InActs(tuple(tuple(tuple(act) for act in part) for part in parts), schema)


class Growing:
    """A table whose only column says how often it was read."""

    def __init__(self) -> None:
        self.reads = 0

    def __call__(self) -> list[Row]:
        self.reads += 1
        return [{"k": k, "edition": self.reads} for k in "ab"]


class Watched:
    """Runs whose cuts are seen as they are published, each with the rows of its interval; one more act after each."""

    def __init__(self, patch: pytest.MonkeyPatch, play: InActs) -> None:
        self.cuts: dict[Token, tuple[Manifest, list[Row]]] = {}
        self._play = play
        patch.setattr(hands, "publish", self._publish)

    def _publish(self, plan: JobPlan, manifest: Manifest) -> None:
        staged = [Path(piece.path) for piece in manifest.staged]
        rows = [row for path in staged if path.exists() for batch in read_arrow(path) for row in batch.to_pylist()]
        self.cuts.setdefault(manifest.token, (manifest, rows))
        publish(plan, manifest)
        self._play.curtain.acts += 1

    def editions(self, step: str, column: str) -> dict[str, set[int]]:
        """What records were looked up in, by the edition that the version before them names."""
        seen: dict[str, set[int]] = {}
        for manifest, rows in self.cuts.values():
            if manifest.base is not None:
                held = self.cuts[manifest.base][0].editions[step]
                seen.setdefault(held, set()).update(row[column] for row in rows)
        return seen


def two_lookups(play: InActs, failing: set[int], **options: Any) -> tuple[hr.Job, Growing, Growing]:
    def trouble(record: Record) -> Record:
        if record["v"] in failing:
            raise RuntimeError("trouble")
        return record

    def same(record: Record, state: Any, out: Callable[[Row], None]) -> None:
        out(record)

    one, other, job = Growing(), Growing(), hr.Job("job")
    first = job.source("s", play).map(trouble).lookup(hr.table(one, key="k", refresh="1 ms"), name="first")
    passed = first.key_by("v").process(same, name="pass", returns={"k": "str", "v": "int", "edition": "int"})
    passed.lookup(hr.table(other, key="k", refresh="1 ms"), name="second", **options).sink("out", hr.rows())
    return job, one, other


@pytest.mark.parametrize(
    ("mode", "chaining", "options"),
    [("realtime", "static", {}), ("microbatch", "static", {}), ("realtime", "dynamic", {"chain": False})],
)
def test_between_two_cuts_everybody_sees_one_edition_which_the_version_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, chaining: str, options: dict[str, Any]
) -> None:
    acts, parts = 8, 2
    play = in_acts(*([[{"k": "ab"[a % 2], "v": 10 * a + p}] for a in range(acts)] for p in range(parts)))
    trouble, failing = [31, 51], set[int]()
    watched = Watched(monkeypatch, play)
    job, one, other = two_lookups(play, failing, **options)
    settings: dict[str, Any] = {"mode": mode, "chaining": chaining, "parallelism": 2, "slices": 5}
    if mode == "realtime":  # in others each batch has one cut
        settings["commit"] = "50 ms"
    failures = drivers = 0
    finished = False
    while not finished:
        run = LocalRun(job, tmp_path / "c", report="5 ms", **settings)
        drivers += 1
        failing.update(trouble[:1])  # each once, and not when the job is planned
        try:
            run.run(seconds=60)
            finished = run.finished
        except hr.UserCodeError:
            failures += 1
            del trouble[:1]
        finally:
            failing.clear()
            rows = run.rows("out")
            run.close()
    assert (failures, drivers) == (2, 3)
    assert sorted(row["v"] for row in rows) == [10 * a + p for a in range(acts) for p in range(parts)]
    for step, column in (("first", "edition"), ("second", "edition_right")):
        seen = watched.editions(step, column)
        values = [next(iter(each)) for each in seen.values() if each]
        assert all(len(each) <= 1 for each in seen.values()), seen
        assert len({*values}) == len(values) > 1, seen
    assert one.reads > 3 and other.reads > 3


def test_a_table_that_cannot_be_read_again_stays_as_it_is_and_users_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    play = in_acts([[{"k": "a", "v": i}] for i in range(6)])
    Watched(monkeypatch, play)
    tables = [[{"k": "a", "rate": 1}], [{"k": "a", "rate": 1}], raises, [{"k": "a"}], [{"k": "a", "rate": 2}]]

    def read() -> Any:
        made = tables[0] if len(tables) == 1 else tables.pop(0)
        return made() if callable(made) else made

    job = hr.Job("job")
    job.source("s", play).lookup(hr.table(read, key="k", refresh="1 ms"), name="rated").sink("out", hr.rows())
    run = LocalRun(job, tmp_path / "c", commit="50 ms", report="5 ms")
    try:
        run.run(seconds=60)
        rates = [row["rate"] for row in run.rows("out")]
    finally:
        run.close()
    assert rates == sorted(rates) and {*rates} <= {1, 2} and len(rates) == 6
    told = [record.getMessage() for record in caplog.records if "goes on with the table it has" in record.getMessage()]
    assert len(told) == 1 and "RuntimeError: no route to host" in told[0] and "step 'rated'" in told[0]


def test_a_column_that_is_new_is_there_from_the_first_record_of_the_next_run(tmp_path: Path) -> None:
    rows: list[Row] = [{"k": "a", "one": 1}]
    play = in_acts([[{"k": "a", "v": 0}], [{"k": "a", "v": 1}]])

    def run_act(acts: int) -> list[Row]:
        play.curtain.acts = acts
        job = hr.Job("job")
        job.source("s", play).lookup(hr.table(lambda: rows, key="k"), name="l").sink("out", hr.rows())
        run = LocalRun(job, tmp_path / "c", mode="microbatch", report="5 ms")
        try:
            run.batch()
            return run.rows("out")
        finally:
            run.close()

    run_act(1)
    rows[0]["two"] = 2
    assert [(row["v"], row["one"], row["two"]) for row in run_act(2)] == [(0, 1, None), (1, 1, 2)]


# The driver's part, alone.


COLUMNS = pa.schema([("k", pa.string()), ("rate", pa.int64())])


def name(serial: int, columns: pa.Schema = COLUMNS, generation: int = 1) -> str:
    return f"{edition_stem(generation, serial, columns)}-{serial:04x}"


def version(cut: int, **editions: str) -> Manifest:
    base = Token(1, 1, cut - 1) if cut > 1 else None
    return Manifest(Token(1, 1, cut), base, editions=editions)


def editions() -> Editions:
    return Editions({"rated": COLUMNS}, {"rated": 10.0}, generation=1)


def test_an_edition_holds_from_the_cut_that_was_asked_for_with_it() -> None:
    made = editions()
    assert not made.complete and len(made.due(0.0)) == 1 and made.due(0.0) == []
    made.on(EditionRead("rated", name(1)), 1.0)
    assert made.complete and made.hold() == {"rated": name(1)} and made.announce() == {}
    made.on(EditionRead("rated", name(9)), 1.0)
    assert made.hold() == {"rated": name(1)} and made.announce() == {"rated": name(9)}, "attempts before the first cut"
    made.on(EditionRead("rated", name(1)), 1.0)
    assert made.logged(version(1, rated=name(1))) == [Remove((name(9),))]
    assert made.due(10.0) == [] and [one.known for one in made.due(11.0)] == [name(1)]  # type: ignore[union-attr]
    assert made.announce() == {}
    made.on(EditionRead("rated", name(2)), 12.0)
    assert made.after({}, end=False) == {"rated": name(1)}, "the cut that is under way was asked for before"
    assert made.announce() == {"rated": name(2)}
    assert made.after(made.announced, end=False) == {"rated": name(2)} == made.after({}, end=True)


def test_editions_are_removed_when_the_last_two_versions_name_others() -> None:
    made = editions()
    removed = []
    for serial in range(1, 5):
        made.on(EditionRead("rated", name(serial)), 0.0)
        made.announce()
        removed.append([one.names for one in made.logged(version(serial, rated=name(serial)))])  # type: ignore[union-attr]
    assert removed == [[], [], [(name(1),)], [(name(2),)]]


def test_an_edition_that_no_version_ever_named_is_removed_when_it_is_replaced() -> None:
    made = editions()
    made.on(EditionRead("rated", name(1)), 0.0)
    made.logged(version(1, rated=name(1)))
    made.on(EditionRead("rated", name(2)), 0.0)
    assert made.on(EditionRead("rated", name(3)), 0.0) == [Remove((name(2),))]
    made.announce()
    assert made.on(EditionRead("rated", name(4)), 0.0) == [], "a cut is under way to the third"
    assert made.logged(version(2, rated=name(1))) == [Remove((name(3),))], "which ended a batch"


def test_what_a_cut_names_is_kept_while_its_entry_is_on_its_way_to_the_log() -> None:
    made = editions()
    made.on(EditionRead("rated", name(1)), 0.0)
    made.hold()
    made.on(EditionRead("rated", name(2)), 0.0)
    assert made.after({}, end=True) == {"rated": name(2)}
    assert made.on(EditionRead("rated", name(3)), 0.0) == []


def test_a_version_with_other_columns_does_not_count() -> None:
    made = editions()
    made.begin([version(1, rated=name(1, pa.schema([("k", pa.string())]))), version(2, other=name(2))])
    assert not made.complete
    made.begin([version(3, rated=name(3))])
    assert made.complete and made.hold() == {"rated": name(3)}


def test_trouble_is_told_once_until_it_is_over() -> None:
    made, trouble = editions(), hr.DataError("gone")
    said = [made.on(EditionRead("rated", error=trouble), float(i)) for i in range(2)]
    assert [len(each) for each in said] == [1, 0] and isinstance(said[0][0], Say)
    made.on(EditionRead("rated", name(1)), 3.0)
    assert len(made.on(EditionRead("rated", error=trouble), 4.0)) == 1


def test_stored_editions_are_those_that_were_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    rows = pa.RecordBatch.from_pylist([{"k": "a", "rate": 1}], schema=COLUMNS)
    first = put_edition(storage, edition_stem(1, 1, COLUMNS), rows, None)
    assert put_edition(storage, edition_stem(1, 2, COLUMNS), rows, first) == first
    assert get_edition(storage, first).equals(rows)
    second = put_edition(storage, edition_stem(2, 1, COLUMNS), rows, None)
    assert left_behind(storage, 2, frozenset()) == [first] and left_behind(storage, 2, {first}) == []
    storage.put(second, b"something else")
    with pytest.raises(CorruptionError, match="its checksum differs"):
        get_edition(storage, second)


def test_equal_lookups_run_once(tmp_path: Path) -> None:
    table = hr.table(lambda: RATES, key="currency")
    job = hr.Job("job")
    paid = job.source("paid", scripted(PAID))
    for each in ("one", "other"):
        paid.lookup(table, name=each).sink(f"{each}-out", hr.rows())
    plan = plan_job(job, tmp_path, Settings.of())
    assert dict(plan.graph.shared) == {"other": "one"}
