"""The nodes of a job. A step's name is unique, stable, and the key of its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from headrace.connect.lookuptable import LookupTable
from headrace.connect.sink import Sink
from headrace.connect.source import Source
from headrace.graph.reduction import Reducer
from headrace.graph.windowing import Interval, TimeWindow, Window

OnError = Literal["fail", "skip"]
TransformKind = Literal["map", "flat_map", "filter", "map_batch"]
JoinHow = Literal["inner", "left", "right", "outer"]
LookupHow = Literal["inner", "left"]
StateKind = Literal["value", "queue", "mapping"]
Combine = Literal["auto"] | bool
DEAD_LETTERS = "dead_letters"
Engine = Literal["auto", "inc", "dinc", "dinc-space-saving", "dinc-marker", "mr"]
ENGINES: tuple[Engine, ...] = get_args(Engine)


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How many subtasks a step may have: min, at the start, max."""

    minimum: int
    start: int
    maximum: int


@dataclass(frozen=True, slots=True)
class StepOptions:
    """What any step may be told about how it runs."""

    latency: Literal["read-ready", "read-write"] = "read-ready"
    chain: bool = True
    parallelism: Parallelism | None = None
    on_error: OnError | None = None
    returns: pa.Schema | None = None
    deterministic: bool = True


@dataclass(frozen=True, slots=True)
class SourceNode:
    name: str
    source: Source
    event_time: str | None = None
    time_unit: str | None = None
    lateness_us: int = 0
    idle_us: int | None = None
    options: StepOptions = StepOptions()
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransformNode:
    name: str
    kind: TransformKind
    fn: Callable[..., Any]
    inputs: tuple[str, ...]
    options: StepOptions = StepOptions()


@dataclass(frozen=True, slots=True)
class UnionNode:
    name: str
    inputs: tuple[str, ...]
    options: StepOptions = StepOptions()


@dataclass(frozen=True, slots=True)
class LookupNode:
    """Records get columns of a table's row: the one whose key their columns ``on`` are equal to."""

    name: str
    table: LookupTable
    on: tuple[str, ...]
    how: LookupHow
    inputs: tuple[str, ...]
    options: StepOptions = StepOptions()


@dataclass(frozen=True, slots=True)
class Shed:
    """What a reduce does under overload: abandon records that cannot be processed within ``after_us``.

    ``None``: within the tightest bound of a constraint on a path through the step.
    """

    after_us: int | None = None


@dataclass(frozen=True, slots=True)
class ReduceNode:
    name: str
    keys: tuple[str, ...]
    window: Window | None
    reducers: tuple[tuple[str, Reducer], ...]
    inputs: tuple[str, ...]
    engine: Engine = "auto"
    memory_bytes: int | None = None
    coverage: float | None = None
    options: StepOptions = StepOptions()
    at_least: tuple[str, float] | None = None
    max_records: int | None = None
    combine: Combine = "auto"
    overload: Shed | None = None
    pane_columns: tuple[str, ...] | None = None
    """If a ``PaneNode`` feeds the step: which of its reducers each of this step's is, in order."""

    @property
    def mergeable(self) -> bool:
        return all(reducer.mergeable for _, reducer in self.reducers)


@dataclass(frozen=True, slots=True)
class PaneNode:
    """Panes that several reduce steps share; made by ``graph.sharing``, not by users.

    It adds each record to one pane, and hands the pane's aggregates to the steps it feeds when the pane has
    ended. To them it stands for the stream that it reads. ``reducers`` has each different one once.
    """

    name: str
    keys: tuple[str, ...]
    pane_us: int
    reducers: tuple[tuple[str, Reducer], ...]
    inputs: tuple[str, ...]
    options: StepOptions = StepOptions()

    @property
    def table(self) -> ReduceNode:
        """The reduce whose states are these panes."""
        window = TimeWindow(self.pane_us, self.pane_us)
        return ReduceNode(self.name, self.keys, window, self.reducers, self.inputs, options=self.options)


@dataclass(frozen=True, slots=True, repr=False)
class DeclaredState:
    """A state that a process step has for each key; ``ttl_us``: how long what is set in it lasts, None is for ever."""

    kind: StateKind
    ttl_us: int | None = None

    def __repr__(self) -> str:
        return f"hr.{self.kind}({f'ttl={self.ttl_us / 1e6:g}' if self.ttl_us else ''})"


@dataclass(frozen=True, slots=True)
class ProcessNode:
    name: str
    keys: tuple[str, ...]
    fn: Callable[..., Any]
    state: tuple[tuple[str, DeclaredState], ...]
    inputs: tuple[str, ...]
    on_timer: Callable[..., Any] | None = None
    options: StepOptions = StepOptions()


@dataclass(frozen=True, slots=True)
class JoinNode:
    name: str
    keys: tuple[str, ...]
    window: Window | Interval
    how: JoinHow
    inputs: tuple[str, ...]
    options: StepOptions = StepOptions()
    memory_bytes: int | None = None

    def outer(self, port: int) -> bool:
        """Whether rows of a side that meet none of the other come too."""
        return self.how in ("outer", "right" if port else "left")


@dataclass(frozen=True, slots=True)
class LateNode:
    """What comes too late for a windowed step, at one of its ports: not its results, but records of its input."""

    name: str
    inputs: tuple[str, ...]
    port: int = 0
    options: StepOptions = StepOptions()


@dataclass(frozen=True, slots=True)
class SinkNode:
    name: str
    sink: Sink
    inputs: tuple[str, ...]
    options: StepOptions = StepOptions()


Node = (
    SourceNode
    | TransformNode
    | UnionNode
    | LookupNode
    | ReduceNode
    | PaneNode
    | ProcessNode
    | JoinNode
    | LateNode
    | SinkNode
)


def is_keyed(node: Node) -> bool:
    """Whether the step's input is routed by key, so that it starts a new stage."""
    if isinstance(node, ReduceNode):
        return node.pane_columns is None  # panes are where their keys belong already
    return isinstance(node, (PaneNode, ProcessNode, JoinNode))


@dataclass(frozen=True, slots=True)
class Constraint:
    """A latency bound over the path from one step to another (Nephele's ``(S, l, t)``)."""

    start: str
    end: str
    over_us: int
    mean_us: int | None = None
    quantile: float | None = None
    quantile_us: int | None = None

    def describe(self) -> str:
        bound = f"mean ≤ {(self.mean_us or 0) / 1000:g} ms" if self.mean_us is not None else ""
        if self.quantile is not None:
            bound = f"p{self.quantile * 100:g} ≤ {(self.quantile_us or 0) / 1000:g} ms"
        return f"{self.start} → {self.end}: {bound} over {self.over_us / 1e6:g} s"


@dataclass(frozen=True, slots=True)
class Letters:
    """A dead-letter sink: its own step name, and the beginning of the names of the steps it is for."""

    name: str
    prefix: str
    sink: Sink


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole job: nodes in an order where inputs come first, and constraints.

    ``shared`` says of steps that are no longer there which equal step runs in their place.
    """

    job: str
    nodes: tuple[Node, ...]
    constraints: tuple[Constraint, ...] = ()
    on_error: OnError = "fail"
    letters: tuple[Letters, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    by_name: dict[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {node.name: node for node in self.nodes})

    @property
    def letter_sinks(self) -> dict[str, Sink]:
        return {letters.name: letters.sink for letters in self.letters}

    def letters_of(self, step: str) -> str | None:
        """The name of the dead-letter sink of a step."""
        return next((letters.name for letters in self.letters if step.startswith(letters.prefix)), None)

    def consumers(self, name: str) -> tuple[tuple[Node, int], ...]:
        """The nodes that read a node, each with the input port they read it on."""
        return tuple((n, port) for n in self.nodes for port, source in enumerate(n.inputs) if source == name)

    def streams_into(self, node: Node) -> tuple[str, ...]:
        """The steps whose records a node is given: its inputs, or what the step reads that records are too late for."""
        return (self.by_name[node.inputs[0]].inputs[node.port],) if isinstance(node, LateNode) else node.inputs

    def late_wanted(self, name: str) -> bool:
        """Whether what comes too late for a step, or for one that its panes feed, is read."""
        readers = [reader for reader, _ in self.consumers(name)]
        fed = [reader.name for reader in readers if isinstance(reader, ReduceNode) and reader.pane_columns is not None]
        return any(isinstance(reader, LateNode) for reader in readers) or any(map(self.late_wanted, fed))
