"""Rows without what they say twice: a column that repeats another one, or has one value only, is stored once.

Sums of columns without nulls all count the same records, and all rows of a step without windows are in one pane: of a
table of sums that is nearly half of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.hashing import WORD_TYPES, raw_words

_FEW_ROWS = 256
"""Below this, what is saved is little more than what it takes to say so."""
_ONE_VALUE = -1


class LeanRows(NamedTuple):
    """``different`` columns, a row of those that have one value, and for each column of the whole where its values are: the
    number of one that differs, or -1 for the next one of one value.
    """

    different: pa.RecordBatch
    single: pa.RecordBatch
    columns: list[int]


def lean(rows: pa.RecordBatch) -> LeanRows | None:
    """Rows without what they say twice; None if that would save nothing."""
    if rows.num_rows < _FEW_ROWS:
        return None
    different: list[int] = []
    single: list[int] = []
    columns: list[int] = []
    words = [_words(column) for column in rows.columns]
    for at, mine in enumerate(words):
        if mine is not None and _all_are(mine, mine[0]):
            single.append(at)
            columns.append(_ONE_VALUE)
            continue
        twins = (i for i, other in enumerate(different) if rows.column(other).type == rows.column(at).type)
        twin = next((i for i in twins if _are_alike(mine, words[different[i]])), None)
        if twin is None:
            twin = len(different)
            different.append(at)
        columns.append(twin)
    if not different or len(different) == len(columns):
        return None
    return LeanRows(rows.select(different), rows.slice(0, 1).select(single), columns)


def whole(rows: LeanRows, names: Sequence[str]) -> pa.RecordBatch:
    """All columns again, by their names."""
    single = iter(rows.single.columns)
    columns = [
        pa.repeat(next(single)[0], rows.different.num_rows) if at == _ONE_VALUE else rows.different.column(at)
        for at in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=list(names))


def _words(column: pa.Array) -> npt.NDArray[Any] | None:
    """The values' bits where they are whole numbers of four or eight bytes, none of them null."""
    kind = column.type
    if not pa.types.is_integer(kind) or kind.bit_width not in WORD_TYPES or column.null_count:
        return None
    return raw_words(column)


def _all_are(words: npt.NDArray[Any], value: Any) -> bool:
    return bool(words[-1] == value and (words == value).all())


def _are_alike(words: npt.NDArray[Any] | None, other: npt.NDArray[Any] | None) -> bool:
    """The first and last tell nearly all that differ."""
    if words is None or other is None or words[0] != other[0] or words[-1] != other[-1]:
        return False
    return bool(np.array_equal(words, other))
