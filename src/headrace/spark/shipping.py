"""Getting users' functions to workers: by value, unless they come from an installed package.

What cannot be sent, such as a lock or a connection, is found before Spark starts, and named by the variable that has it.
"""

from __future__ import annotations

import functools
import io
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

from pyspark import cloudpickle

from headrace.errors import GraphError
from headrace.graph.nodes import Graph, ProcessNode, ReduceNode, SinkNode, SourceNode, TransformNode
from headrace.graph.reduction import UserReducer

_INSTALLED = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_HEADRACE = Path(__file__).resolve().parents[1]
_DEEPEST = 8
"""How many variables may lie between a function and what is wrong with it, to be named."""


def ship_by_value(graph: Graph) -> None:
    """Make workers independent of the files that the job's functions were defined in; GraphError naming step and
    variable if one of them has something that cannot be sent.
    """
    objects = [*_user_objects(graph)]
    for module in {id(m): m for _, _, thing in objects for m in [_module_of(thing)] if m is not None}.values():
        cloudpickle.register_pickle_by_value(module)
    for step, what, thing in objects:
        if _trouble(thing) is not None:
            raise GraphError(_refusal(step, what, thing))


def _user_objects(graph: Graph) -> Iterator[tuple[str, str, Any]]:
    """What users wrote: step, what it is, the object. The whole of a source or sink comes after its function."""
    for node in graph.nodes:
        match node:
            case TransformNode():
                yield node.name, "its function", node.fn
            case ProcessNode():
                yield from ((node.name, "its function", node.fn), (node.name, "its on_timer", node.on_timer))
            case ReduceNode():
                for name, reducer in node.reducers:
                    if isinstance(reducer, UserReducer):
                        for part in ("init", "update", "combine", "finalize", "early"):
                            yield node.name, f"{part}= of {name}", getattr(reducer, part)
            case SourceNode() if not hasattr(node.source, "frame"):  # Spark reads DataFrames, nobody is sent them
                yield node.name, "its function", getattr(node.source, "make", None)
                yield node.name, "its source", node.source
            case SinkNode():
                if getattr(node.sink, "when", None) != "on_commit":  # else it is called in the driver
                    yield node.name, "its function", getattr(node.sink, "fn", None)
                yield node.name, "its sink", node.sink
    for letters in graph.letters:
        yield letters.name, "its sink", letters.sink


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


class _Nowhere:
    """A file that keeps nothing: functions may come with much data."""

    def write(self, data: Any) -> int:
        return len(data)


def _open_file(file: io.TextIOWrapper) -> Any:
    """Spark's pickler would send what is in a file now, and workers would read that."""
    name = next((name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is file), None)
    if name is None:
        raise TypeError("an open file stays in its process")
    return getattr, (sys, name)


class _Trial(cloudpickle.Pickler):  # type: ignore[misc]
    """As Spark pickles, but for open files."""

    dispatch_table: ClassVar[Any] = ChainMap({io.TextIOWrapper: _open_file}, cloudpickle.Pickler.dispatch_table)


def _trouble(thing: Any) -> Exception | None:
    """Why something cannot be sent; None if it can."""
    try:
        _Trial(_Nowhere()).dump(thing)
    except Exception as error:  # whatever a user's __reduce__ raises
        return error
    return None


def _refusal(step: str, what: str, thing: Any) -> str:
    path, culprit = _culprit(thing, (), {id(thing)})
    named = f"{what} uses {'.'.join(path)!r}, " if path else f"{what} is "
    kind = f"{type(culprit).__module__}.{type(culprit).__qualname__}".removeprefix("builtins.")
    return (
        f"step {step!r}: {named}a {kind}, which cannot be sent to workers ({_trouble(culprit)}); make it inside the function, "
        f"or once in each worker: in a function without arguments under @functools.cache, called where it is needed"
    )


def _culprit(thing: Any, path: tuple[str, ...], seen: set[int]) -> tuple[tuple[str, ...], Any]:
    """The innermost part of something that cannot be sent, and by which variables it is reached."""
    if len(path) < _DEEPEST:
        for name, part in _parts(thing):
            if id(part) not in seen and _trouble(part) is not None:
                return _culprit(part, (*path, name) if name else path, {*seen, id(part)})
    return path, thing


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What something is made of, by the names of variables; those of the code around it have none."""
    match thing:
        case FunctionType():
            code = thing.__code__
            for name, cell in zip(code.co_freevars, thing.__closure__ or ()):
                yield name, _content(cell)
            yield from ((name, thing.__globals__[name]) for name in _globals_of(code) if name in thing.__globals__)
            names = code.co_varnames[: code.co_argcount]
            yield from zip(names[::-1], (thing.__defaults__ or ())[::-1])
            yield from (thing.__kwdefaults__ or {}).items()
        case MethodType():
            yield from (("", thing.__self__), ("", thing.__func__))
        case functools.partial():
            yield from (("", thing.func), *((f"argument {i + 1}", part) for i, part in enumerate(thing.args)))
            yield from thing.keywords.items()
        case Mapping():
            yield from ((str(key), part) for key, part in thing.items())
        case list() | tuple() | set() | frozenset():
            yield from (("", part) for part in thing)
        case type():
            yield from ((name, part) for name, part in vars(thing).items() if isinstance(part, FunctionType))
        case _:
            yield from getattr(thing, "__dict__", {}).items()
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            yield from ((name, getattr(thing, name)) for name in slots if hasattr(thing, name))
            yield "", type(thing)


def _globals_of(code: Any) -> Iterator[str]:
    """Names that a function may read from its module, those of functions inside it too."""
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _globals_of(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None
