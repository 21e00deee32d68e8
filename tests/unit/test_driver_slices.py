"""What users are told of slices."""

from __future__ import annotations

from headrace.driver.slicefigures import SliceFigures, slice_figures
from headrace.state.durable.manifest import Manifest, SliceVersion
from headrace.state.durable.segments import BlockRef
from headrace.tokens import Token


def block(cut: int, length: int) -> BlockRef:
    return BlockRef(f"segments/{Token(1, 1, cut)}-s01-0002-00.seg", 0, length, "", 2, False)


def test_a_slices_figures_are_those_of_all_its_stores() -> None:
    slices = {
        ("sums", 0): SliceVersion((1, 1), (block(3, 10), block(7, 5))),
        ("sums#rest", 0): SliceVersion((1, 1), (block(8, 1),)),
        ("others", 1): SliceVersion((1, 1), (block(9, 100),)),
    }
    found = slice_figures("sums", (2, 0), Manifest(Token(1, 1, 9), None, slices), {0: 4.5}, [("there",), ()])
    assert found == [
        SliceFigures("sums", 0, 2, bytes=16, rows=6, changed_cuts=1, records=4.5, backups=("there",)),
        SliceFigures("sums", 1, 0, bytes=0, rows=0, changed_cuts=None, records=0.0, backups=()),
    ]
    assert [one.bytes for one in slice_figures("sums", (2, 0), None, {}, [(), ()])] == [0, 0]
