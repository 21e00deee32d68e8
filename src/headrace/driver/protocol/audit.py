"""What must be true of all subtasks' descriptions of a cut before it may be logged. It prevents nothing: it finds out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from headrace.errors import ProtocolError
from headrace.runtime.plan import Description

Channel = tuple[int, int]
"""An edge, which is between two neighbouring stages, and a sender."""


def audit(descriptions: Sequence[Description]) -> None:
    """Raise ProtocolError unless the descriptions fit together.

    All are of one cut. Per edge, sender and slice, what was sent in the interval was consumed in it. All records that
    went into buffers were taken out of them, so none was left open at the cut. And all subtasks of a stage had come to the
    same time on each edge, as they must have with the same senders' marks.
    """
    _check_token(descriptions)
    _check_items(descriptions)
    _check_records(descriptions)
    _check_watermarks(descriptions)


def _check_token(descriptions: Sequence[Description]) -> None:
    tokens = {description.token for description in descriptions}
    if len(tokens) > 1:
        raise ProtocolError(f"descriptions of several cuts together: {', '.join(map(str, sorted(tokens)))}")


def _check_items(descriptions: Sequence[Description]) -> None:
    sent = _per_slice(description.sent for description in descriptions)
    consumed = _per_slice(description.consumed for description in descriptions)
    for edge, sender in sorted(sent.keys() | consumed.keys()):
        out, back = sent[edge, sender], consumed[edge, sender]
        if out == back:
            continue
        where, difference = f"edge {edge}, sender {sender}", out.total() - back.total()
        if difference > 0:
            raise ProtocolError(f"{where}: {out.total()} items sent, {difference} not consumed")
        if difference < 0:
            raise ProtocolError(f"{where}: {-difference} items were consumed that it did not send")
        raise ProtocolError(f"{where}: {out.total()} items sent, consumed in other slices than those they were sent to")


def _check_records(descriptions: Sequence[Description]) -> None:
    put = _per_channel(description.put for description in descriptions)
    stood = _per_channel(description.stood for description in descriptions)
    for edge, sender in sorted(put.keys() | stood.keys()):
        into, out = put[edge, sender], stood[edge, sender]
        if into != out:
            raise ProtocolError(
                f"edge {edge}, sender {sender}: {into} records were put into buffers, but {out} taken out of them: "
                f"a buffer was not flushed at the cut"
            )


def _check_watermarks(descriptions: Sequence[Description]) -> None:
    first: dict[int, Description] = {}
    for description in descriptions:
        other = first.setdefault(description.stage, description)
        for edge in sorted(description.watermarks.keys() | other.watermarks.keys()):
            mine, its = description.watermarks.get(edge), other.watermarks.get(edge)
            if mine != its:
                raise ProtocolError(
                    f"stage {description.stage}, edge {edge}: at the cut subtask {description.index} had come to "
                    f"{_time(mine)}, subtask {other.index} to {_time(its)}"
                )


def _per_slice(counts: Iterable[dict[int, dict[int, list[int]]]]) -> defaultdict[Channel, Counter[int]]:
    """Items by edge and sender, then slice; slices without any are left out."""
    found: defaultdict[Channel, Counter[int]] = defaultdict(Counter)
    for by_edge in counts:
        for edge, by_sender in by_edge.items():
            for sender, items in by_sender.items():
                found[edge, sender].update({slice: n for slice, n in enumerate(items) if n})
    return found


def _per_channel(counts: Iterable[dict[int, dict[int, int]]]) -> Counter[Channel]:
    found: Counter[Channel] = Counter()
    for by_edge in counts:
        for edge, by_sender in by_edge.items():
            for sender, records in by_sender.items():
                found[edge, sender] += records
    return found


def _time(watermark_us: int | None) -> str:
    return "no time yet" if watermark_us is None else f"{watermark_us} µs"
