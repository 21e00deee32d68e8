"""SCALLA's pipeline (section 2.8), batch by batch: it shares no formula with the model.

Every task has a core of its own and writes and fetches one batch after the other; every time varies by
``noise_cv2``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from thesis.scalla_phases import JobStatistics, Periods, QueueShape, ThesisHardware, ThesisLayout
from thesis.waits import QueueMoments

Numbers = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Run:
    """Traced tuples after the warm-up: time in each of the twelve phases, and when they came and were done.

    ``overdue`` tuples waited longer in a queue than a bounded one would have kept them.
    """

    phases_s: Numbers
    came_s: Numbers
    done_s: Numbers
    overdue: int
    statistics: JobStatistics

    @property
    def latency_s(self) -> Numbers:
        return self.done_s - self.came_s


@dataclass(frozen=True, slots=True)
class Server:
    """What a queue did: start of each batch, and the shapes it showed."""

    start_s: Numbers
    shape: QueueShape


def _serve(arrived_s: Numbers, services_s: Numbers, server: Ids) -> Server:
    """First come, first served, at each of several servers."""
    start_s = np.zeros(len(arrived_s))
    free_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    apart_s = []
    for at in np.argsort(arrived_s, kind="stable").tolist():
        who = int(server[at])
        start_s[at] = max(arrived_s[at], free_s.get(who, 0.0))
        free_s[who] = start_s[at] + services_s[at]
        if who in last_s:
            apart_s.append(arrived_s[at] - last_s[who])
        last_s[who] = arrived_s[at]
    between, own = QueueMoments.of_sample(np.array(apart_s)), QueueMoments.of_sample(services_s)
    return Server(start_s, QueueShape(between.scaled_to(1.0), own.scaled_to(1.0)))


def _batches(labels: Ids) -> tuple[Ids, Numbers, Numbers]:
    """Batch of each tuple, tuples per batch, and each tuple's place in its batch (from 1), in given order."""
    _, batch, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = np.argsort(batch, kind="stable")
    place = np.empty(len(labels))
    place[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return batch, counts.astype(float), place


def _first(batch: Ids, values: Numbers) -> Numbers:
    """The value of each batch, the same for all its tuples."""
    out = np.empty(batch.max() + 1)
    out[batch] = values
    return out


@dataclass(frozen=True, slots=True)
class Pipeline:
    """One system under one load. Each part returns its tuples' phases and what the next part needs."""

    rate_per_s: float
    job: JobStatistics
    node: ThesisHardware
    layout: ThesisLayout
    periods: Periods
    noise_cv2: float
    rng: np.random.Generator

    def noisy(self, times_s: Numbers) -> Numbers:
        return times_s * self.rng.gamma(1 / self.noise_cv2, self.noise_cv2, len(times_s))

    @property
    def core(self) -> float:
        return self.node.cycles_per_s / self.node.cores

    def map(self, came: Numbers) -> tuple[list[Numbers], Numbers, Ids, QueueShape, QueueShape]:
        """L1 to L5: mini-batches go to the mappers in turn. When each tuple was mapped, and where."""
        tick = np.floor(came / self.periods.input_s).astype(np.int64)
        batch, n, place = _batches(tick)
        packed = _first(batch, (tick + 1) * self.periods.input_s)
        send_s = self.noisy(n * self.job.input_bytes / self.node.network_bytes_per_s)
        sending = _serve(packed, send_s, np.zeros(len(n), np.int64))
        mapper = np.arange(len(n)) % (self.layout.nodes * self.layout.mappers)
        arrived = sending.start_s + send_s
        map_s = self.noisy((n * self.job.map_cycles + self.job.batch_cycles) / self.core)
        mapping = _serve(arrived, map_s, mapper)
        own_s = map_s[batch] * place / n[batch]
        phases = [packed[batch] - came, (sending.start_s - packed)[batch], send_s[batch],
                  (mapping.start_s - arrived)[batch], own_s]  # fmt: skip
        return phases, mapping.start_s[batch] + own_s, mapper[batch], sending.shape, mapping.shape

    def shuffle(self, mapped: Numbers, mapper: Ids) -> tuple[list[Numbers], Numbers, Ids, QueueShape]:
        """L6 to L8: each mapper packs and writes. When each tuple's shuffle batch was written, and its number."""
        mappers, every_s = self.layout.nodes * self.layout.mappers, self.periods.shuffle_s
        offset = self.rng.uniform(0, every_s, mappers)[mapper]
        turn = np.ceil((mapped - offset) / every_s).astype(np.int64)
        shuffle, n, _ = _batches(turn * mappers + mapper)
        packed = _first(shuffle, offset + turn * every_s)
        output_bytes = self.job.outputs_per_input * self.job.output_bytes
        rate = self.rate_per_s * output_bytes / self.layout.nodes
        disk = np.interp(rate, self.node.disk_write_rates, self.node.disk_bytes_per_s)
        write_s = self.noisy(n * output_bytes / disk)
        writing = _serve(packed, write_s, _first(shuffle, mapper.astype(float)).astype(np.int64))
        phases = [packed[shuffle] - mapped, (writing.start_s - packed)[shuffle], write_s[shuffle]]
        return phases, (writing.start_s + write_s)[shuffle], shuffle, writing.shape

    def reduce(self, written: Numbers, shuffle: Ids) -> tuple[list[Numbers], Numbers, QueueShape]:
        """L9 to L12: reducers fetch at their heartbeats and update. When each tuple was done."""
        reducers = self.layout.nodes * self.layout.reducers
        target = self.rng.integers(reducers, size=len(written))
        part, n, place = _batches(shuffle * reducers + target)
        reducer = _first(part, target.astype(float)).astype(np.int64)
        ready = _first(part, written)
        beat = _next_beats(ready, reducer, self.periods.heartbeat_s, self.rng)
        outputs = n * self.job.outputs_per_input
        fetch_s = self.noisy(outputs * self.job.output_bytes / self.node.network_bytes_per_s)
        fetching = _serve(beat, fetch_s, reducer)
        arrived = fetching.start_s + fetch_s
        update_s = self.noisy((outputs * self.job.update_cycles + self.job.batch_cycles) / self.core)
        updating = _serve(arrived, update_s, reducer)
        own_s = update_s[part] * place / n[part]
        phases = [(fetching.start_s - ready)[part], fetch_s[part], (updating.start_s - arrived)[part], own_s]
        return phases, updating.start_s[part] + own_s, updating.shape


def run(
    rate_per_s: float, job: JobStatistics, node: ThesisHardware, layout: ThesisLayout, periods: Periods, *, seconds: float,
    seed: int, noise_cv2: float = 0.05, queue_s: float = 5.0,
) -> Run:  # fmt: skip
    """Poisson tuples through the whole pipeline, and the statistics that would be measured of the job."""
    rng = np.random.default_rng(seed)
    pipeline = Pipeline(rate_per_s, job, node, layout, periods, noise_cv2, rng)
    came = np.cumsum(rng.exponential(1 / rate_per_s, int(rate_per_s * seconds)))
    mapping_s, mapped, mapper, sending, mapping = pipeline.map(came)
    writing_s, written, shuffle, writing = pipeline.shuffle(mapped, mapper)
    updating_s, done, updating = pipeline.reduce(written, shuffle)
    phases = [*mapping_s, *writing_s, *updating_s]
    overdue = np.max([phases[at] for at in (1, 3, 6, 10)], axis=0) > queue_s
    kept = came > came[-1] * 0.15
    # Shuffle batches that one heartbeat fetches are no independent arrivals: the model has them apart.
    statistics = replace(job, sending=sending, mapping=mapping, writing=writing,
                         updating=QueueShape(service=updating.service))  # fmt: skip
    return Run(np.array(phases).T[kept], came[kept], done[kept], int(overdue.sum()), statistics)


def _next_beats(
    ready_s: Numbers, reducer: Ids, every_s: float, rng: np.random.Generator
) -> Numbers:  # fmt: skip
    """When each part is fetched: at its reducer's next heartbeat, which comes on time to within 10 %."""
    beats_s = np.zeros(len(ready_s))
    for who in range(reducer.max() + 1):
        mine = reducer == who
        clock = np.cumsum(rng.uniform(0.9, 1.1, int(ready_s.max() / every_s * 1.1) + 20) * every_s)
        clock += rng.uniform(-1, 0) * every_s
        beats_s[mine] = clock[np.searchsorted(clock, ready_s[mine])]
    return beats_s
