"""Which definitions of the product some entry reaches, by reading its source: mark and sweep over names.

Coarse in one respect only: a method counts as used where any live code has an attribute of that name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = (*Function, ast.ClassDef)
Named = tuple[str, str]
"""A module and a name at its top level."""


@dataclass
class Module:
    """One file: what it defines at its top level, and what its other names stand for."""

    name: str
    tree: ast.Module
    defined: dict[str, ast.AST] = field(default_factory=dict)
    constants: set[str] = field(default_factory=set)
    imported: dict[str, Named] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.tree.body:
            if isinstance(node, Definition):
                self.defined[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and _is_set(part)}
                self.constants |= {name for name in names if not _is_dunder(name)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                self.imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                self.imported |= {alias.asname: (alias.name, "") for alias in node.names if alias.asname}


def modules_under(root: Path, without: Iterable[str]) -> dict[str, Module]:
    """All modules of a package but those of some of its sub-packages, by dotted name."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).with_suffix("").parts
        if inside[0] not in without:
            parts = (root.name, *inside)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = Module(name, ast.parse(path.read_text()))
    return found


class Reached:
    """What is live: code that runs when modules are imported, the roots, and all that these name."""

    def __init__(self, modules: dict[str, Module], roots: Iterable[Named], users_classes: Iterable[Named]) -> None:
        self._modules = modules
        self._users = set(users_classes)
        self._attributes: set[str] = set()
        self._waiting: dict[str, list[tuple[str, ast.AST]]] = {}
        self.live: set[Named] = set()
        for module in modules.values():
            for node in module.tree.body:
                if isinstance(node, Function) and any(map(_registers, node.decorator_list)):
                    self._mark(module.name, node.name)
                elif not isinstance(node, (*Definition, ast.Import, ast.ImportFrom)):
                    self._read(module, node)
        for root in (*roots, *self._users):
            self._mark(*root)

    def dead(self) -> list[str]:
        """Functions, classes and constants at the top level, and methods of live classes, that nothing live refers to."""
        unused = {
            f"{module.name}.{name}"
            for module in self._modules.values()
            for name in (*module.defined, *module.constants)
            if (module.name, name) not in self.live
        }
        waiting = {f"{owner}.{name}" for name, nodes in self._waiting.items() for owner, _ in nodes}
        return sorted(unused | waiting)

    def _mark(self, module_name: str, name: str) -> None:
        """A name is in use: follow it to where it is defined, and read that."""
        module = self._modules.get(module_name)
        if module is None or (module_name, name) in self.live:
            return
        self.live.add((module_name, name))
        node = module.defined.get(name)
        if node is None:
            if name in module.imported:
                self._mark(*module.imported[name])
        elif isinstance(node, ast.ClassDef):
            self._mark_class(module, node)
        else:
            self._read(module, node)

    def _mark_class(self, module: Module, node: ast.ClassDef) -> None:
        users = (module.name, node.name) in self._users
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self._read(module, part)
        for part in node.body:
            if (
                not isinstance(part, Function)
                or part.name in self._attributes
                or _is_dunder(part.name)
                or (users and not part.name.startswith("_"))
            ):
                self._read(module, part)
            else:
                self._waiting.setdefault(part.name, []).append((f"{module.name}.{node.name}", part))

    def _read(self, module: Module, node: ast.AST) -> None:
        """Mark all that some code names."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not _is_set(part):
                self._name(module, part.id)
            elif isinstance(part, ast.Attribute):
                self._attribute(part.attr)
                if isinstance(part.value, ast.Name) and part.value.id in module.imported:
                    package, name = module.imported[part.value.id]
                    self._mark(f"{package}.{name}" if name else package, part.attr)

    def _name(self, module: Module, name: str) -> None:
        if name in module.defined or name in module.constants:
            self._mark(module.name, name)
        elif name in module.imported:
            self._mark(*module.imported[name])

    def _attribute(self, name: str) -> None:
        if name not in self._attributes:
            self._attributes.add(name)
            for owner, node in self._waiting.pop(name, []):
                self._read(self._modules[owner.rpartition(".")[0]], node)


def _registers(decorator: ast.expr) -> bool:
    """Whether a function becomes one of Typer's commands, which is a use of it."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in ("command", "callback")


def _is_set(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")
