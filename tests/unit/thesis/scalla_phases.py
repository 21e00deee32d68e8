"""The twelve phases of SCALLA's own system (section 2.9), to check the method against the thesis.

A distributor packs tuples into mini-batches, mappers on S nodes pack their output into shuffle
batches, reducers fetch those by heartbeat. How load depends on the settings is left open there [O];
what we chose is said below. ``model.stagephases`` has the phases of our own runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.model.laws import Gamma, Law, Uniform, WaitLaw
from headrace.model.phases import Phase, PhasedPath
from thesis.waits import QueueMoments, wait_bounds

_SAME = QueueMoments.fixed()


@dataclass(frozen=True, slots=True)
class QueueShape:
    """Measured shape of inter-arrival and service times of one queue, scaled to a mean of one second."""

    arrivals: QueueMoments = _SAME
    service: QueueMoments = _SAME


@dataclass(frozen=True, slots=True)
class JobStatistics:
    """What the thesis measures of a job: per input tuple or map output, and the shapes of four queues."""

    outputs_per_input: float
    input_bytes: float
    output_bytes: float
    map_cycles: float
    update_cycles: float
    sending: QueueShape = QueueShape()
    mapping: QueueShape = QueueShape()
    writing: QueueShape = QueueShape()
    updating: QueueShape = QueueShape()
    batch_cycles: float = 0.0
    """Cycles that any batch costs a mapper or reducer besides its tuples. Not in the thesis: without it
    the best period is always the shortest."""


@dataclass(frozen=True, slots=True)
class ThesisHardware:
    """One node. ``disk_bytes_per_s`` is D as measured: throughput at increasing write rates."""

    cores: int
    cycles_per_s: float
    network_bytes_per_s: float
    disk_write_rates: tuple[float, ...]
    disk_bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ThesisLayout:
    """Integer settings: nodes, and mappers and reducers on each."""

    nodes: int
    mappers: int
    reducers: int


@dataclass(frozen=True, slots=True)
class Periods:
    """How often the distributor packs, a mapper packs, and a reducer asks (B_in, B_sh, B_ch)."""

    input_s: float
    shuffle_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class ThesisLoad:
    """Seconds of work per batch: map, update, send, write, and fetch of one reducer's part."""

    map_s: float
    update_s: float
    send_s: float
    write_s: float
    fetch_s: float


def path_of(
    rate_per_s: float, job: JobStatistics, node: ThesisHardware, layout: ThesisLayout, periods: Periods, *, bounded: bool = True
) -> PhasedPath:  # fmt: skip
    """L1 to L12 at a rate. Raises UnstableError if one of the four queues cannot keep up.

    ``bounded``: queues have the thesis's bound on E(W²), for guarantees. It is far above the truth where
    batches come periodically; without it waits get an exponential tail, for estimates.
    """
    load = load_of(rate_per_s, job, node, layout, periods)
    mappers = layout.nodes * layout.mappers
    fetched = max(1.0, mappers * periods.heartbeat_s / periods.shuffle_s)
    queues = (
        _queue(job.sending, periods.input_s, load.send_s, bounded),
        _queue(job.mapping, periods.input_s * mappers, load.map_s, bounded),
        _queue(job.writing, periods.shuffle_s, load.write_s, bounded),
        _queue(job.updating, periods.shuffle_s / mappers, load.update_s, bounded),
    )
    return PhasedPath((
        Phase("L1 input batching", (Uniform(0.0, periods.input_s),)),
        Phase("L2 queue Q_D", (queues[0],)),
        Phase("L3 network", (_batch(job.sending, load.send_s),)),
        Phase("L4 queue Q_MI", (queues[1],)),
        Phase("L5 map", (_position(job.mapping, load.map_s),)),
        Phase("L6 shuffle batching", (Uniform(0.0, periods.shuffle_s),)),
        Phase("L7 queue Q_MM", (queues[2],)),
        Phase("L8 disk write", (_batch(job.writing, load.write_s),)),
        Phase("L9 heartbeat", (Uniform(0.0, periods.heartbeat_s),)),
        Phase("L10 network", (Gamma(load.fetch_s),)),
        Phase("L11 queue Q_RI", (queues[3], _place(job.updating, load.update_s, fetched))),
        Phase("L12 update", (_position(job.updating, load.update_s),)),
    ))  # fmt: skip


def load_of(
    rate_per_s: float, job: JobStatistics, node: ThesisHardware, layout: ThesisLayout, periods: Periods
) -> ThesisLoad:
    """Times per batch, each at what the rest of the node leaves of the resource, at most one core of CPU."""
    mappers, reducers = layout.nodes * layout.mappers, layout.nodes * layout.reducers
    outputs_per_s = job.outputs_per_input * rate_per_s
    map_cycles = rate_per_s * periods.input_s * job.map_cycles + job.batch_cycles
    part = outputs_per_s * periods.shuffle_s / mappers / reducers
    update_cycles = part * job.update_cycles + job.batch_cycles
    mapper_per_s = map_cycles / (periods.input_s * mappers)
    reducer_per_s = update_cycles * mappers / periods.shuffle_s
    all_per_s = layout.mappers * mapper_per_s + layout.reducers * reducer_per_s
    input_bytes_per_s = rate_per_s * job.input_bytes / layout.nodes
    shuffle_bytes_per_s = outputs_per_s * job.output_bytes / layout.nodes
    disk = float(np.interp(shuffle_bytes_per_s, node.disk_write_rates, node.disk_bytes_per_s))
    return ThesisLoad(
        map_s=map_cycles / _cpu(node, all_per_s - mapper_per_s),
        update_s=update_cycles / _cpu(node, all_per_s - reducer_per_s),
        send_s=_transfer(rate_per_s * periods.input_s * job.input_bytes, node.network_bytes_per_s, shuffle_bytes_per_s),
        write_s=_transfer(
            shuffle_bytes_per_s * periods.shuffle_s / layout.mappers,
            disk,
            shuffle_bytes_per_s * (1 - 1 / layout.mappers),
        ),
        fetch_s=_transfer(
            part * job.output_bytes,
            node.network_bytes_per_s,
            input_bytes_per_s + shuffle_bytes_per_s * (1 - 1 / layout.reducers),
        ),
    )


_NOTHING_LEFT = 1e-9


def _cpu(node: ThesisHardware, others_per_s: float) -> float:
    share = min(1 - others_per_s / node.cycles_per_s, 1 / node.cores)
    return max(share, _NOTHING_LEFT) * node.cycles_per_s


def _transfer(size_bytes: float, bytes_per_s: float, others_per_s: float) -> float:
    return size_bytes / (max(1 - others_per_s / bytes_per_s, _NOTHING_LEFT) * bytes_per_s)


def _batch(shape: QueueShape, mean_s: float) -> Gamma:
    return Gamma(mean_s, shape.service.cv2 * mean_s**2)


def _position(shape: QueueShape, mean_s: float) -> Uniform:
    """A tuple's own turn comes anywhere in its batch: U·T has mean E(T)/2 and second moment E(T²)/3."""
    second_s2 = shape.service.scaled_to(mean_s).second_s2 / 3
    return Uniform.matching(mean_s / 2, second_s2 - mean_s**2 / 4)


def _place(shape: QueueShape, service_s: float, together: float) -> Uniform:
    """Of batches that come together each waits for those before it.

    The thesis takes shuffle batches to arrive one by one at Q_RI, but a heartbeat fetches all that are
    ready. Between heartbeats we keep its queue, and add the place among the batches fetched at once.
    """
    before = (together - 1) / 2
    own_s2 = shape.service.scaled_to(service_s).var_s2
    return Uniform.matching(before * service_s, (together**2 - 1) / 12 * service_s**2 + before * own_s2)


def _queue(shape: QueueShape, every_s: float, service_s: float, bounded: bool) -> Law:
    bounds = wait_bounds(shape.arrivals.scaled_to(every_s), shape.service.scaled_to(service_s))
    return Gamma(bounds.mean_s, bounds.var_s2) if bounded else WaitLaw(bounds.mean_s, service_s / every_s)
