"""The identity of a job: what each step's state depends on, in words that can be compared and shown.

A step's *facts* say what the rows of its state mean. What may change on a checkpoint is not among them: functions,
lateness, memory within a bound, the kind of outer join, how long versions and states are kept.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import pyarrow as pa

from headrace.connect.writing.staging import STAGING
from headrace.driver.publishing import sinks_of
from headrace.graph.combining import can_combine
from headrace.graph.memory import engine_of
from headrace.graph.nodes import (
    JoinNode,
    LateNode,
    LookupNode,
    Node,
    PaneNode,
    ProcessNode,
    ReduceNode,
    SinkNode,
    SourceNode,
    TransformNode,
)
from headrace.graph.reduction import Reducer, UserReducer
from headrace.graph.sharing import Sharing
from headrace.graph.windowing import Interval, SessionWindow, TimeWindow, WholeInput, Window
from headrace.runtime.plan import JobPlan
from headrace.state.durable.segments import FORMAT_ID
from headrace.state.hashing import HASH_ID

Columns = dict[str, str]
"""Types by the names of columns, in their order."""
Side = Literal["used", "input", "left input", "right input"]
"""Of which columns: those that a reduce uses, or all of an input whose records a step keeps."""

PARTITIONS = "number of partitions"
COMBINING = "combining"
MEMORY = "memory="
NO_BOUND, BOUND, WAITING, MR = "none", "a bound", "a bound, with records that wait on disk", "a bound, with engine 'mr'"
"""How a reduce keeps its state: all in memory; partials on disk too; partials and records; nothing but records."""


class Step(msgspec.Struct, frozen=True):
    """One step. ``columns`` is the Arrow schema of what it puts out.

    Of steps with state: ``facts``, what the rows of the state mean; ``inputs``, the columns they are made of;
    ``states`` of a process step by name, which may come and go. ``reads`` says what a source reads, ``readers`` which
    steps share panes.
    """

    kind: str
    columns: bytes
    facts: dict[str, str] = {}
    inputs: dict[Side, Columns] = {}
    states: dict[str, str] = {}
    reads: str = ""
    readers: tuple[str, ...] = ()

    @property
    def stateful(self) -> bool:
        return bool(self.facts)

    @property
    def types(self) -> Columns:
        """The columns that it puts out."""
        return _typed(pa.ipc.read_schema(pa.py_buffer(self.columns)))


class Retired(msgspec.Struct, frozen=True):
    """A step that the job no longer has. Its state stays as it was after the cut at ``entry`` of the version log."""

    step: Step
    entry: int


class Identity(msgspec.Struct, frozen=True):
    """What a checkpoint knows of its job.

    ``runs_as`` says of steps without state of their own which equal step runs in their place, ``sinks`` into which
    directory each sink writes that has one.
    """

    job: str
    slices: int
    hashing: str
    format: int
    steps: dict[str, Step]
    runs_as: dict[str, str] = {}
    retired: dict[str, Retired] = {}
    sinks: dict[str, str] = {}

    def known(self, name: str) -> Step | None:
        """A step of the job, or one that it had."""
        retired = self.retired.get(name)
        return retired.step if retired is not None else self.steps.get(name)

    def partitions(self, name: str) -> int | None:
        """How many partitions a source has; None if it is not known."""
        step = self.known(name)
        return int(step.facts[PARTITIONS]) if step is not None and step.kind == "source" else None

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        """The columns that each step puts out."""
        return {name: pa.ipc.read_schema(pa.py_buffer(step.columns)) for name, step in self.steps.items()}

    @property
    def sharing(self) -> Sharing:
        """How steps that have state share what they do, which has to stay so."""
        known = self.steps | {name: retired.step for name, retired in self.retired.items()}
        return Sharing(
            frozenset(name for name, step in known.items() if step.stateful),
            {name: step.readers for name, step in known.items() if step.readers},
        )


NEW = Identity("", 0, "", 0, {})
"""What is known where there is no checkpoint yet: nothing."""


def identity(plan: JobPlan) -> Identity:
    """What a checkpoint of this job has to agree with."""
    return Identity(
        plan.graph.job,
        plan.slices,
        HASH_ID,
        FORMAT_ID,
        {node.name: _step(plan, node) for node in plan.graph.nodes if not isinstance(node, SinkNode)},
        dict(plan.graph.shared),
        sinks=_directories(plan),
    )


def _step(plan: JobPlan, node: Node) -> Step:
    columns = plan.fixed_schemas[node.name].serialize().to_pybytes()
    match node:
        case SourceNode():
            facts = {"kind of source": type(node.source).__name__, PARTITIONS: str(plan.partitions[node.name])}
            return Step("source", columns, facts | {"event time": _event_time(node)}, reads=node.source.describe())
        case ReduceNode():
            return Step("reduce", columns, _reduce_facts(node), _reduce_inputs(node, plan.schema_into(node.name)))
        case PaneNode():
            facts = {"key": _listed(node.keys), "pane length": _seconds(node.pane_us)} | _results(node.reducers)
            readers = tuple(reader.name for reader, _ in plan.graph.consumers(node.name))
            return Step("panes", columns, facts, {"used": _used(node, plan.schema_into(node.name))}, readers=readers)
        case ProcessNode():
            used = _used(node, plan.schema_into(node.name))
            states: dict[str, str] = {name: declared.kind for name, declared in node.state}
            return Step("process", columns, {"key": _listed(node.keys)}, {"used": used}, states)
        case JoinNode():
            facts = {"key": _listed(node.keys), "window": _in_words(node.window)}
            if isinstance(node.window, Interval):  # rows say whether they were matched if that will be asked
                facts |= {"how": node.how, MEMORY: NO_BOUND if node.memory_bytes is None else BOUND}
            left, right = (_typed(plan.schema_into(node.name, port)) for port in (0, 1))
            return Step("join", columns, facts, {"left input": left, "right input": right})
        case TransformNode():
            return Step(node.kind, columns)
        case LateNode():
            return Step("late", columns)
        case LookupNode():
            return Step("lookup", columns)
        case _:
            return Step("union", columns)


def _directories(plan: JobPlan) -> dict[str, str]:
    """Where sinks write; those that keep their rows under the checkpoint go with it."""
    checkpoint = plan.checkpoint.resolve()
    places = {name: sink.staging_root(checkpoint).resolve() for name, sink in sinks_of(plan).items()}
    outside = {name: root for name, root in places.items() if not root.is_relative_to(checkpoint)}
    return {name: str(root.parent if root.name == STAGING else root) for name, root in outside.items()}


def _reduce_facts(node: ReduceNode) -> dict[str, str]:
    facts = {"key": _listed(node.keys), "window": _in_words(node.window)} | _results(node.reducers)
    early = node.at_least is not None or any(getattr(reducer, "early", None) for _, reducer in node.reducers)
    facts["emit= (or a reducer's early=)"] = "given" if early else "none"
    facts[MEMORY] = _memory(node)
    if isinstance(node.window, TimeWindow) and facts[MEMORY] != MR:  # rows are of panes, or of whole windows
        facts[COMBINING] = "on" if can_combine(node) else "off (combine=False, or a reducer that has no combine=)"
    if node.max_records is not None:  # what was never kept relied on all of these
        bound = f"{node.max_records} with memory={node.memory_bytes}, coverage={node.coverage}, emit={node.at_least}"
        facts["max_records="] = bound
    return facts


def _memory(node: ReduceNode) -> str:
    if node.memory_bytes is None:
        return NO_BOUND
    if engine_of(node)[0] == "mr":
        return MR
    by_key = not isinstance(node.window, (TimeWindow, WholeInput))
    return WAITING if by_key and not can_combine(node) else BOUND


def _reduce_inputs(node: ReduceNode, schema: pa.Schema) -> dict[Side, Columns]:
    inputs: dict[Side, Columns] = {"used": _used(node, schema)}
    if _memory(node) in (WAITING, MR):
        inputs["input"] = _typed(schema)
    return inputs


def _used(node: ReduceNode | PaneNode | ProcessNode, schema: pa.Schema) -> Columns:
    """The columns that rows of state are made of."""
    reducers = () if isinstance(node, ProcessNode) else node.reducers
    names = {*node.keys, *(column for _, reducer in reducers for column in reducer.columns)}
    return {name: kind for name, kind in _typed(schema).items() if name in names}


def _typed(schema: pa.Schema) -> Columns:
    return {field.name: f"{field.type}{'' if field.nullable else ' not null'}" for field in schema}


def _results(reducers: tuple[tuple[str, Reducer], ...]) -> dict[str, str]:
    return {f"result {name!r}": _reducer(reducer) for name, reducer in reducers}


def _reducer(reducer: Reducer) -> str:
    """Functions may be mended; whoever changes what their state is has to say so by another name."""
    return "a reducer of your own" if isinstance(reducer, UserReducer) else reducer.describe()


def _event_time(node: SourceNode) -> str:
    if node.event_time is None:
        return "when it is read"
    return f"column {node.event_time!r}" + (f" in {node.time_unit}" if node.time_unit else "")


def _in_words(window: Window | Interval | None) -> str:
    """A window, exactly: ``describe`` is for people and rounds."""
    match window:
        case None:
            return "none (running results)"
        case TimeWindow():
            versioned = ", versioned" if window.versioned else ""
            return f"{_seconds(window.size_us)} every {_seconds(window.every_us)}{versioned}"
        case SessionWindow():
            return f"sessions with a gap of {_seconds(window.gap_us)}"
        case Interval():
            return f"from {_seconds(window.before_us)} before to {_seconds(window.after_us)} after"
        case _:
            return window.describe()


def _seconds(us: int) -> str:
    return f"{us / 1e6:.15g} s"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
