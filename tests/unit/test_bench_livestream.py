"""The video experiment: pictures of the papers' size, the same answers however steps are chained, a chain to be made."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from headrace.actuate.controljob import control_job
from headrace.bench.guarantees.livestream import VARIANTS, VideoLoad, chained_at_s, check, job_of
from headrace.bench.guarantees.video import (
    FEEDS,
    HEIGHT,
    PACKET_BYTES,
    PERIOD,
    STEPS,
    WIDTH,
    Film,
    decode,
    merge,
    overlay,
)
from headrace.config import Settings
from headrace.control.chaining import primary_chains
from headrace.control.constraints import edges_of
from headrace.driver.planning import plan_job
from headrace.driver.status import Event
from headrace.runtime.plan import JobPlan
from headrace.testing import run_local

FILM = Film(2)
LOAD = VideoLoad(rate=1000, seconds=1)
NONE = {"lost": 0, "duplicated": 0, "wrong": 0}


def chaining(variant: str) -> str:
    return "static" if variant == "static" else "dynamic"


def plan_of(variant: str, directory: Path) -> JobPlan:
    settings = Settings.of(parallelism=1, chaining=chaining(variant))
    return plan_job(job_of(FILM, LOAD, print, variant, 50.0), directory, settings)


def test_pictures_are_as_large_as_in_the_papers() -> None:
    packets = FILM.packets(1, 7)
    assert len(packets) == PACKET_BYTES == FEEDS * 1200
    assert len(decode(packets)) == FEEDS * WIDTH * HEIGHT == 307_200
    assert len(merge(decode(packets))) == WIDTH * HEIGHT


def test_steps_do_what_they_are_called() -> None:
    feeds = np.repeat(np.array([40, 80, 120, 160], np.uint8), WIDTH * HEIGHT)
    tiles = np.frombuffer(merge(feeds.tobytes()), np.uint8).reshape(HEIGHT, WIDTH)
    corners = [tiles[y, x] for y in (0, -1) for x in (0, -1)]
    assert corners == [40, 80, 120, 160]
    first, next_ = (
        np.frombuffer(overlay(tiles.tobytes(), moment), np.uint8).reshape(HEIGHT, WIDTH) for moment in (0, 1)
    )
    assert (first[:200] == tiles[:200]).all()
    assert (first[-1] != next_[-1]).any()


def test_each_picture_has_a_checksum_of_its_own() -> None:
    checksums = FILM.checksums()
    assert checksums.shape == (2, PERIOD) and len(np.unique(checksums)) == 2 * PERIOD


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_give_the_same_answers(variant: str) -> None:
    load = VideoLoad(rate=120, seconds=1)
    job = job_of(FILM, load, print, variant, 50.0)
    rows = run_local(job, parallelism=1, chaining=chaining(variant))["viewers"]
    table = {
        "seq": np.array([row["seq"] for row in rows]),
        "checksum": np.array([zlib.crc32(row["encoded"]) for row in rows]),
    }
    assert check(table, FILM, load.total) == NONE
    table["checksum"][5] += 1
    assert check(table, FILM, load.total) == {**NONE, "wrong": 1}
    assert check({name: values[:-2] for name, values in table.items()}, FILM, load.total) == {
        **NONE, "lost": 2, "wrong": 1,
    }  # fmt: skip


def test_unchained_is_a_process_per_step_and_static_is_one_for_all(tmp_path: Path) -> None:
    unchained, static = (plan_of(variant, tmp_path).layout for variant in ("unchained", "static"))
    assert [stage.steps for stage in unchained.stages] == [("feeds",), *((name,) for name in STEPS), ("viewers",)]
    assert [stage.steps for stage in static.stages] == [("feeds",), tuple(STEPS), ("viewers",)]


# latency-guarantees 3: the inner four tasks can be chained, the outer streams are part of the constraint
def test_control_may_chain_the_four_steps_and_counts_both_outer_edges(tmp_path: Path) -> None:
    job = control_job(plan_of("", tmp_path))
    (path,) = job.constraints[0].paths
    assert primary_chains(path, job.topology) == (tuple(STEPS),)
    assert not job.chained
    names = [(job.topology.by_id[edge].source, job.topology.by_id[edge].target) for edge in edges_of(path)]
    assert names[0] == ("feeds", "decoder") and names[-1] == ("encoder", "viewers")


def test_the_time_of_the_last_chain_counts_from_the_first_picture() -> None:
    events = [Event(12.0, "chain", "a"), Event(13.5, "chain", "b"), Event(14.0, "batch", "c")]
    assert chained_at_s(events, 10_000_000) == 3.5
    assert chained_at_s(events[2:], 10_000_000) is None
