"""``bench model-accuracy``: predicted against measured latency, over rates, deadlines, subtasks and service times.

The model is calibrated by two runs of its own, at settings that are not among those tested.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import headrace as hr
from headrace.bench.guarantees.matching import matched
from headrace.bench.latency import Numbered, count_up
from headrace.bench.measuring.figures import TreeWatch
from headrace.bench.measuring.recorder import Table, recording
from headrace.errors import HeadraceError, UnstableError
from headrace.forecast.pathmodel import plant_of
from headrace.forecast.prediction import predicted
from headrace.measure.report import Report
from headrace.model.costs import Costs, StepCost
from headrace.model.fitting import fitted_costs
from headrace.runtime.plan import JobPlan

Values = npt.NDArray[np.float64]
Say = Callable[[str], None]
_WARMUP_S, _SECONDS = 2, 9
_JIT_S = 20
"""Until Java has compiled what carries rows; before that, rows are held up more often than later."""
_NEAR_P50, _NEAR_P99 = 0.20, 0.30
_SLEEP_S = 0.002


@dataclass(frozen=True, slots=True)
class AccuracySetting:
    """What is varied; ``service_us`` is the time per record of the second step."""

    rate: int
    flush_ms: int
    subtasks: int
    service_us: int


TESTED = tuple(AccuracySetting(*values) for values in product((500, 2000), (10, 40), (1, 2), (50, 200)))
QUICK = (TESTED[1], TESTED[6], TESTED[11], TESTED[12])
UNEVEN = [("1 s", "300/s"), ("1 s", "3000/s")]
"""Two rates in turn give batches of two sizes: with one, batch and record could not be told apart."""
CALIBRATION = AccuracySetting(1000, 20, 2, 100)
"""Also with one subtask: a flush for two receivers is two rows, which take longer."""


@dataclass(frozen=True, slots=True)
class Service:
    """Takes a time per record, waiting as for a remote service: cores are few here, and the model knows nothing of that."""

    service_s: float

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(self.service_s * records.num_rows)
        return records


@dataclass(frozen=True, slots=True)
class MeasuredLatency:
    """Latency of every record after the warm-up in the calmest seconds, and what workers reported meanwhile."""

    plan: JobPlan
    latency_s: tuple[Values, ...]
    reports: tuple[Report, ...]
    items: int
    lost: int
    duplicated: int
    load_1m: float

    def quantile_s(self, share: float) -> float:
        """The usual quantile of a second: a stall of the machine is its second's, not the setting's."""
        return float(np.median([np.quantile(second, share) for second in self.latency_s]))

    def whole_s(self, share: float) -> float:
        """The quantile over all seconds together."""
        return float(np.quantile(np.concatenate(self.latency_s), share))


def job_of(setting: AccuracySetting, sink: Any, rate: Any, total: int) -> hr.Job:
    job = hr.Job("bench-model-accuracy")
    items = job.source("items", hr.generate(Numbered(1000), rate=rate, total=total, due="due_us"))
    counted = items.key_by("key").process(count_up, name="count", state={"n": hr.value()})
    counted.map_batch(Service(setting.service_us / 1e6), name="test").sink("out", hr.callback(sink))
    return job


def measure(session: Any, setting: AccuracySetting, *, rate: Any = None, seconds: int = _SECONDS) -> MeasuredLatency:
    """Run one setting; ``rate`` replaces its own by one that varies."""
    total = setting.rate * seconds
    with recording(("seq", "due_us")) as recorder:
        job = job_of(setting, recorder, rate or f"{setting.rate}/s", total)
        run = hr.start(job, spark=session, parallelism=setting.subtasks, flush=f"{setting.flush_ms} ms")
        try:
            with Probe() as probe:
                if not run.wait(60 + seconds):
                    raise HeadraceError(f"{setting} did not end")
        finally:
            run.stop()
            run.delete_temporary_checkpoint()
        table = recorder.read()
    seen = np.bincount(table["seq"], minlength=total)
    began_s = table["due_us"].min() / 1e6 + _WARMUP_S
    reports = tuple(heard.report for heard in run.reports() if heard.report.at_s > began_s + 1)
    lost, twice = int((seen == 0).sum()), int(np.maximum(seen - 1, 0).sum())
    load_1m = round(os.getloadavg()[0], 2)
    kept = calmest(by_second(table, began_s), [probe.held_s(began_s + n, began_s + n + 1) for n in range(seconds)])
    return MeasuredLatency(run.plan, kept, reports, total, lost, twice, load_1m)


def by_second(table: Table, began_s: float) -> tuple[Values, ...]:
    """Latencies of the records due in each second from ``began_s`` on."""
    due_s, latency_s = table["due_us"] / 1e6 - began_s, (table["now_us"] - table["due_us"]) / 1e6
    seconds = np.floor(due_s).astype(np.int64)
    return tuple(latency_s[seconds == second] for second in range(int(seconds.max()) + 1) if (seconds == second).any())


def calmest(seconds: tuple[Values, ...], held_s: Sequence[float]) -> tuple[Values, ...]:
    """The half of the seconds in which the machine held others up for the shortest time, in order."""
    best = sorted(range(len(seconds)), key=lambda second: held_s[second])[: -(-len(seconds) // 2)]
    return tuple(seconds[second] for second in sorted(best))


def calibrated(uneven: MeasuredLatency, even: MeasuredLatency) -> Costs:
    """Costs of steps and channels from both runs' reports, and what the second's quantiles leave unexplained."""
    costs = fitted_costs((*uneven.reports, *even.reports), ["items"])
    measured_s = even.quantile_s(0.5), even.quantile_s(0.99)
    return matched(costs, lambda tried: predict_s(even.plan, tried, CALIBRATION), measured_s)


def calibrate(session: Any) -> dict[int, Costs]:
    """Costs by the number of subtasks."""
    found = {}
    for subtasks in sorted({setting.subtasks for setting in TESTED}):
        setting = replace(CALIBRATION, subtasks=subtasks)
        found[subtasks] = calibrated(measure(session, setting, rate=UNEVEN, seconds=8), measure(session, setting))
    return found


def predict_s(plan: JobPlan, costs: Costs, setting: AccuracySetting) -> tuple[float, float]:
    """Median and p99 of a setting, of which the second step's time per record is a part."""
    test = costs.steps.get("test", StepCost(0.0, 0.0))
    steps = {**costs.steps, "test": replace(test, record_s=setting.service_us / 1e6)}
    plant = plant_of(plan, replace(costs, steps=steps), None, "items", "out")
    path = predicted(plan, plant, float(setting.rate))
    return path.quantile_s(0.5), path.quantile_s(0.99)


def compared(
    setting: AccuracySetting, predicted_s: tuple[float, float] | None, measured: MeasuredLatency
) -> dict[str, Any]:
    """One row of the table; a setting that the model calls overloaded counts as wrong in both."""
    row: dict[str, Any] = asdict(setting)
    for name, at, share in (("p50", 0, 0.5), ("p99", 1, 0.99)):
        real_s = measured.quantile_s(share)
        row[f"{name}_ms"] = round(1000 * real_s, 2)
        row[f"predicted_{name}_ms"] = round(1000 * predicted_s[at], 2) if predicted_s is not None else None
        row[f"{name}_error"] = round(predicted_s[at] / real_s - 1, 3) if predicted_s is not None else None
    row["whole_p99_ms"] = round(1000 * measured.whole_s(0.99), 2)
    row["load_1m"] = measured.load_1m
    return row


def shares(rows: list[dict[str, Any]]) -> dict[str, float]:
    """How many settings were predicted well enough."""

    def near(key: str, maximum: float) -> float:
        within = [row[key] is not None and abs(row[key]) <= maximum for row in rows]
        return round(float(np.mean(within)), 3)

    return {
        "share_p50_within_20pct": near("p50_error", _NEAR_P50),
        "share_p99_within_30pct": near("p99_error", _NEAR_P99),
    }


def model_accuracy(say: Say, *, quick: bool = False) -> dict[str, Any]:
    """Calibrate, then predict and measure each setting in turn, all in one Spark session."""
    from headrace.spark.session import open_session

    tested = QUICK if quick else TESTED
    session = open_session("realtime", "local[6]", "bench-model-accuracy")
    rows, runs = [], []
    try:
        with TreeWatch() as watch:
            measure(session, CALIBRATION, seconds=_JIT_S)
            costs = calibrate(session)
            for setting in tested:
                runs.append(measure(session, setting))
                rows.append(compared(setting, _tried(runs[-1].plan, costs[setting.subtasks], setting), runs[-1]))
                say(str(rows[-1]))
    finally:
        session.stop()
    return {
        "settings": rows,
        **shares(rows),
        **calibration_figures(costs[CALIBRATION.subtasks]),
        "items": sum(run.items for run in runs),
        **watch.figures(),
        "lost": sum(run.lost for run in runs),
        "duplicated": sum(run.duplicated for run in runs),
        "wrong": 0,
    }


def _tried(plan: JobPlan, costs: Costs, setting: AccuracySetting) -> tuple[float, float] | None:
    try:
        return predict_s(plan, costs, setting)
    except UnstableError:
        return None


def calibration_figures(costs: Costs) -> dict[str, float]:
    """What the calibration found; the defaults of ``model.costs`` are from here."""
    figures = {
        "wake_ms": costs.wake.row_s * 1e3,
        "transfer_ms": costs.transfer.row_s * 1e3,
        "transfer_sd_ms": costs.transfer.var_s2**0.5 * 1e3,
        "held_ms": costs.wake.held_s * 1e3,
    }
    for step in ("count", "test", "out"):
        figures |= {
            f"{step}_batch_us": costs.steps[step].batch_s * 1e6,
            f"{step}_record_us": costs.steps[step].record_s * 1e6,
        }
    return {name: round(value, 3) for name, value in figures.items()}


@dataclass(slots=True)
class Probe:
    """How much the machine holds up whoever wants to run: a thread that sleeps and notes how late it wakes.

    As a context manager; ``late_s`` are the times of waking and how late each was.
    """

    late_s: list[tuple[float, float]] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Probe:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            due_s = time.time() + _SLEEP_S
            time.sleep(_SLEEP_S)
            self.late_s.append((due_s, time.time() - due_s))

    def held_s(self, began_s: float, ended_s: float) -> float:
        """The time lost to hold-ups between two moments."""
        return sum(late_s for due_s, late_s in self.late_s if began_s <= due_s < ended_s)
