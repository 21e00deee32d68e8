"""What measuring costs one subtask: ``python -m headrace.bench.metering_cost``."""

from __future__ import annotations

import time

from headrace.measure.backlog import Backlog
from headrace.measure.report import Report
from headrace.runtime.messages import Reported, encode
from headrace.runtime.metering.meter import StepMeter
from headrace.runtime.wire.channelmeter import ChannelMeter, Stamp
from headrace.runtime.wire.frames import Frame, Kind
from headrace.tokens import Attempt

_STEPS, _SENDERS = 8, 16


def metering_costs(
    buffers_per_s: int = 1000, records: int = 1000, share: float = 0.1, rounds: int = 5
) -> dict[str, float]:
    """CPU time of a subtask with eight steps in a chain behind one edge from sixteen senders.

    Of each second: what meters take while a thousand buffers of a thousand records pass, and what making
    and packing the report takes, which goes out once.
    """
    meters = [StepMeter(f"step-{i}") for i in range(_STEPS)]
    for meter in meters:
        meter.ages.share = share
    edge = ChannelMeter(0, meters[0], share, Stamp())
    frames = [
        Frame(Kind.DATA, 0, i % _SENDERS, i // _SENDERS + 1, records, waited_us=4000 * records, shipped_us=i)
        for i in range(buffers_per_s)
    ]
    measuring_s, reporting_s, size = [], [], 0
    for _ in range(rounds):
        began_s = time.thread_time()
        for frame in frames:
            _pass(edge, meters, frame)
        passed_s = time.thread_time()
        size = len(_message(edge, meters))
        reporting_s.append(time.thread_time() - passed_s)
        measuring_s.append(passed_s - began_s)
    return {
        "buffers_per_s": buffers_per_s,
        "records_per_s": buffers_per_s * records,
        "measuring_share": min(measuring_s),
        "buffer_and_step_us": min(measuring_s) / buffers_per_s / _STEPS * 1e6,
        "report_share": min(reporting_s),
        "report_bytes": size,
    }


def _pass(edge: ChannelMeter, meters: list[StepMeter], frame: Frame) -> None:
    now_us = time.time_ns() // 1000
    meters[0].arrived(now_us)
    edge.served(frame, now_us, now_us)
    for meter in meters:
        visit = meter.enter(frame.items, now_us)
        meter.wrote(frame.items)
        meter.leave(visit)


def _message(edge: ChannelMeter, meters: list[StepMeter]) -> bytes:
    taken = [meter.take(0) for meter in meters]
    report = Report("1/0", 0.0, 0, tuple(report for report, _ in taken), tuple(edge.take(0)))
    flows, backlog = tuple(flow for _, flow in taken), Backlog("direct", {}, 0, 0, 0.0, 0, 0.0, {})
    return encode(Reported(1, 0, Attempt(1, 0), 1, 0, 0.0, 0, False, {}, flows, report, backlog, {}))


if __name__ == "__main__":
    for name, value in metering_costs().items():
        print(f"{name:24}{value:16,.5g}")
