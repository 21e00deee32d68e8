"""Getting users' functions to workers: by value, unless they come from an installed package."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle

from headrace.graph.nodes import Graph, ProcessNode, ReduceNode, SinkNode, SourceNode, TransformNode
from headrace.graph.reduction import UserReducer

_INSTALLED = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_HEADRACE = Path(__file__).resolve().parents[1]


def ship_by_value(graph: Graph) -> None:
    """Make workers independent of the files that the job's functions were defined in."""
    for module in {id(m): m for m in map(_module_of, _user_objects(graph)) if m is not None}.values():
        cloudpickle.register_pickle_by_value(module)


def _user_objects(graph: Graph) -> Iterator[Any]:
    for node in graph.nodes:
        match node:
            case TransformNode():
                yield node.fn
            case ProcessNode():
                yield from (node.fn, node.on_timer)
            case ReduceNode():
                for _, reducer in node.reducers:
                    if isinstance(reducer, UserReducer):
                        yield from (reducer.init, reducer.update, reducer.combine, reducer.finalize, reducer.early)
            case SourceNode():
                yield from (node.source, getattr(node.source, "make", None))
            case SinkNode():
                yield from (node.sink, getattr(node.sink, "fn", None))


def _module_of(thing: Any) -> ModuleType | None:
    """The module a user's object comes from, if workers may not have it."""
    name = getattr(thing, "__module__", None) or type(thing).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None or name == "__main__":
        return None
    path = Path(file).resolve()
    if path.is_relative_to(_HEADRACE) or any(path.is_relative_to(place) for place in _INSTALLED):
        return None
    return module
