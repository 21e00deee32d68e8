"""Signatures that show what ``**settings: Unpack[…]`` takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def spelled_out(options: Any, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """A decorator: ``help`` and notebooks see each key of a TypedDict in a signature, in place of ``**options``."""

    def mark(fn: F) -> F:
        signature = inspect.signature(fn)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name),
                annotation=getattr(kind, "__forward_arg__", kind),
            )
            for name, kind in options.__annotations__.items()
        ]
        fn.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
        return fn

    return mark
