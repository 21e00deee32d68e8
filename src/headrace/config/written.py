"""Settings of a run as users write them: one definition for editors, ``Settings.of`` and ``docs/api.md``."""

from __future__ import annotations

from typing import Literal, TypedDict

from headrace.config.schedules import Schedule, Transition
from headrace.units import Duration, Size

Mode = Literal["realtime", "microbatch", "batch"]
MODES: tuple[Mode, ...] = ("realtime", "microbatch", "batch")


class RunSettings(TypedDict, total=False):
    """Settings of a run as users write them; ``Settings`` has them as numbers, with their defaults.

    What is for one mode only is refused in the others (``holding``).
    """

    mode: Mode
    """``"realtime"``, ``"microbatch"`` or ``"batch"``."""
    parallelism: int
    """Subtasks per stage, where a step does not say."""
    slices: int | None
    """Shares of each step's keys: the unit of stored state, fixed for the life of a checkpoint. Without it, four for each
    subtask that the widest keyed step may ever have, as a power of two and 64 at least."""
    commit: Duration
    """Time between cuts: how often state, source offsets and results become one version, durable and visible. Longer by
    itself where cuts would hold records up for more than a few percent of the time. Realtime mode only: others have one
    cut at the end of each batch."""
    recovery: Duration | None
    """How soon after a failure there are to be new results: cuts are so close that what is repeated fits into that, at first
    half of it; if it was missed for want of copies there are more. What it took is reported against it. Realtime mode
    only."""
    flush: Duration
    """The longest time a record waits in an output buffer."""
    flush_bytes: Size
    """The size at which an output buffer is flushed at once."""
    flush_by: Literal["deadline", "size"]
    """What the controller adapts, where a job has latency constraints: how long a buffer waits, or how large it gets.
    Realtime mode only."""
    chaining: Literal["static", "dynamic"]
    """``"static"`` chains all steps between two shuffles; ``"dynamic"`` gives every stateless step a process that the
    controller may do without."""
    schedule: Schedule
    """Which step of a subtask works next: ``"direct"`` passes each buffer through all of them at once, the others queue
    buffers at every step (``docs/how-it-works.md``)."""
    hybrid: Transition | tuple[float, float, float]
    """Shapes the schedule of that name: ``(threshold, alpha, beta)``."""
    budget: Size | None
    """Memory of a subtask for queued buffers and state: reading stops when it is used up."""
    queue: Size
    """Memory for queued buffers alone, without ``budget``."""
    poll_rows: int
    """Records that a source hands over at once, at most."""
    trigger: Duration
    """Time between micro-batches; 0: one after the other. Microbatch mode only."""
    chunk: Duration
    """How often changed state is written between cuts that are further apart."""
    chunk_bytes: Size
    """After how much changed state it is written at once."""
    share: bool
    """Whether steps that are equal run once."""
    executors: tuple[int, int] | None
    """``(min, max)``: a job with latency constraints has as many executors of a cluster as its elastic steps need.
    Without it, all stay. Realtime mode only."""
    release: Duration
    """How long an executor is not needed before it is let go. Realtime mode only."""
    backup: int | None
    """On how many other executors copies of each slice are kept, to load from after a failure and to mend a damaged
    checkpoint; 0: none, and none on the own. Without it, 1 on clusters and 0 in local mode. Realtime mode only."""
    idle: Duration
    """Silence after which a live source holds back nobody's windows, where ``job.source`` does not say."""
    report: Duration
    """How often workers report, and the controller decides."""
    sample_share: float
    """Share of buffers that are measured."""
    lease: Duration
    """A worker process that gives no sign of life for so long is taken to hang."""
    join_timeout: Duration
    """How long all subtasks of a batch may take to start."""
    give_up: Duration
    """A job that keeps failing is started again and again until no cut was made for so long."""
    debug_state: bool
    """Check state more often than needed, for tests."""
