"""Slices change hands while a job runs: every kind of step gives what it gives without."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference as ref
from acts import Curtain, InActs, rows_of
from workflows import out

import headrace as hr
from headrace.driver.protocol.events import MovesAsked
from headrace.runtime.messages import Adopted, read_as_driver
from headrace.schemas import to_schema
from headrace.testing import LocalRun

SUBTASKS, SLICES, ACTS, RECORDS = 3, 8, 10, 1500
SCHEMA = {"k": "int64", "v": "int64", "t": "int64"}


def script() -> tuple[tuple[dict[str, int], ...], ...]:
    """The records, of one partition so that their order is known, cut into acts."""
    records = [{"k": (n * 7 + n // 13) % 29, "v": n % 101, "t": n // 3} for n in range(RECORDS)]
    step = -(-len(records) // ACTS)
    return tuple(tuple(records[start : start + step]) for start in range(0, len(records), step))


def count(record: dict[str, Any], state: Any, out: Callable[[dict[str, Any]], None]) -> None:
    n = state["n"].get(0) + 1
    state["n"].set(n)
    state["vs"].append(record["v"])
    if len(state["vs"]) > 4:
        state["vs"].popleft()
    if n % 20 == 0:
        state.timer(after="40 ms", tag=str(n))
        out({"k": record["k"], "n": n, "total": sum(state["vs"])})


def on_timer(timer: Any, state: Any, out: Callable[[dict[str, Any]], None]) -> None:
    out({"k": timer.key, "n": -1, "total": state["n"].get()})


def job_of(curtain: Curtain) -> hr.Job:
    source = InActs((script(),), to_schema(SCHEMA), curtain)
    job = hr.Job("moving")
    s = job.source("s", source, event_time="t")
    keyed = s.key_by("k")
    keyed.window(hr.tumbling("50 ms")).reduce(name="tumbling", n=hr.count(), v=hr.sum("v")).sink("tumbling-out", out())
    keyed.window(hr.sliding("100 ms", every="20 ms")).reduce(name="sliding", n=hr.count()).sink("sliding-out", out())
    keyed.window(hr.session_window("15 ms")).reduce(name="sessions", n=hr.count()).sink("sessions-out", out())
    keyed.window(hr.count_window(7)).reduce(name="counts", v=hr.collect_list("v")).sink("counts-out", out())
    keyed.window(hr.whole_input()).reduce(name="whole", n=hr.count(), last=hr.max("v")).sink("whole-out", out())
    keyed.window(hr.tumbling("30 ms")).join(keyed, name="join").sink("join-out", out())
    states: dict[str, Any] = {"n": hr.value(), "vs": hr.queue()}
    processed = keyed.process(
        count, name="process", state=states, on_timer=on_timer, returns={"k": "int", "n": "int", "total": "int"}
    )
    processed.key_by("n").reduce(name="again", n_of=hr.count()).sink("again-out", out())
    return job


def answers(run: LocalRun) -> dict[str, Any]:
    rows = rows_of(run)
    last = {row["n"]: row["n_of"] for row in sorted(rows.pop("again-out"), key=lambda row: row["n_of"])}
    return {sink: ref.bag(found) for sink, found in rows.items()} | {"again": last}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = LocalRun(job_of(Curtain(ACTS)), tmp_path_factory.mktemp("reference"), mode="batch", parallelism=1)
    try:
        run.run()
        return answers(run)
    finally:
        run.close()


def moving_run(tmp_path: Path, dice: random.Random) -> tuple[LocalRun, list[Adopted]]:
    """A run whose tables are drawn anew again and again, and what was adopted; every move lets the next act begin."""
    curtain = Curtain()
    run = LocalRun(
        job_of(curtain), tmp_path, parallelism=SUBTASKS, slices=SLICES, commit="50 ms", report="50 ms", flush="2 ms"
    )
    adopted: list[Adopted] = []

    def draw(now_s: float) -> None:
        machine, curtain.acts = run.machine, 1 + len(adopted)
        if (
            machine.phase == "running"
            and machine.cut is None
            and not machine.moving.moves
            and not machine.moving.wanted
        ):
            stage = dice.choice(sorted(machine.moving.stages))
            table = tuple(dice.randrange(SUBTASKS) for _ in range(SLICES))
            if len(set(table)) == SUBTASKS:  # as many as are ordered: else they are levelled again at once
                run._loop.post(MovesAsked(stage, table, "drawn"))

    def hear(sender: bytes, data: bytes, hear: Any = run.hear) -> None:
        if isinstance(message := read_as_driver(data), Adopted):
            adopted.append(message)
        hear(sender, data)

    run._loop._each_turn = draw
    run.hear = hear  # type: ignore[method-assign]
    return run, adopted


# chronostream facts 1, 21, 22, 23, 26, 29: moves lose, repeat and reorder nothing, and make no record late
@pytest.mark.parametrize("seed", range(3))
def test_any_moves_give_what_one_process_gives(tmp_path: Path, reference: dict[str, Any], seed: int) -> None:
    run, adopted = moving_run(tmp_path, random.Random(seed))
    try:
        run.run(seconds=60)
        assert answers(run) == reference
        assert len(adopted) >= ACTS - 1
    finally:
        run.close()
