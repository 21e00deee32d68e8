"""Progress counts what users asked for: engines that block stand still while they merge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DataError
from thesis.progress import Part, Progress, largest_gap, map_progress, reduce_progress

_MAPS, _ROWS, _FREQUENT = 40, 250, 50
_CHUNKS = np.random.default_rng(8).zipf(1.3, (_MAPS, _ROWS)) % 97
_USERS = Counter(_CHUNKS.ravel().tolist())


def _while_maps_run(engine: str) -> Iterator[Progress]:
    """A job that counts users, or finds those with 50 clicks; its parts after each map task."""
    counts: Counter[int] = Counter()
    shown = 0
    frequent = sum(count >= _FREQUENT for count in _USERS.values())
    output = frequent if engine == "frequent users" else len(_USERS)
    for done, chunk in enumerate(_CHUNKS.tolist(), 1):
        for user in chunk:
            counts[user] += 1
            shown += engine == "frequent users" and counts[user] == _FREQUENT
        rows = done * _ROWS
        applied = 0 if engine == "blocking" else rows
        reduced = reduce_progress(Part(rows, _CHUNKS.size), Part(applied, _CHUNKS.size), Part(shown, output))
        mapped = map_progress(Part(done, _MAPS))
        assert mapped is not None and reduced is not None
        yield Progress(mapped, reduced)


# scalla fact 21: sort-merge and MR-hash stay at a third until maps end
def test_blocking_engines_stay_at_a_third() -> None:
    moments = list(_while_maps_run("blocking"))
    assert all(moment.reduce <= 1 / 3 + 1e-12 for moment in moments)
    assert moments[-1].reduce == pytest.approx(1 / 3)
    assert largest_gap(moments) == pytest.approx(2 / 3)


# scalla fact 21: frequent users appear before the end, and reduce keeps within 10 points of map
def test_early_output_keeps_up_with_maps() -> None:
    moments = list(_while_maps_run("frequent users"))
    gap = largest_gap(moments)
    assert gap is not None and gap <= 0.1
    assert any(moment.reduce > 2 / 3 and moment.map < 1 for moment in moments)


# scalla fact 22: without early output, never above two thirds before maps end
def test_without_early_output_two_thirds_is_the_most() -> None:
    moments = list(_while_maps_run("user count"))
    assert all(moment.reduce <= 2 / 3 + 1e-12 for moment in moments)
    assert moments[-1].reduce == pytest.approx(2 / 3)


@given(total=st.integers(1, 1000), data=st.data())
def test_thirds(total: int, data: st.DataObject) -> None:
    shuffled, applied, output = (data.draw(st.integers(0, total)) for _ in range(3))
    progress = reduce_progress(Part(shuffled, total), Part(applied, total), Part(output, total))
    assert progress == pytest.approx((shuffled + applied + output) / (3 * total))


def test_unknown_totals_and_empty_parts() -> None:
    assert reduce_progress(Part(5, 10), Part(5, 10), Part(0, None)) is None
    assert reduce_progress(Part(5, None), Part(5, 10), Part(0, 3)) is None
    assert reduce_progress(Part(5, 10), Part(0, 10), Part(0, 0)) == pytest.approx(1 / 6)
    assert reduce_progress(Part(0, 0), Part(0, 0), Part(0, 0)) == 1
    assert map_progress(Part(0, None)) is None
    assert largest_gap([]) is None
    with pytest.raises(DataError, match="same unit"):
        Part(11, 10)
