"""The house stays tidy: what ships is reached by what users start, names are unique, rooms and files stay small."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import grimp
import pytest
from reachability import Module, Named, Reached, modules_under

import headrace

SRC = Path(headrace.__file__).parent
APART = ("bench", "testing")
"""Experiments and the testing kit: they use the product, and nothing is in it for them alone."""
ENTRIES = ("headrace", "headrace.cli.main", "headrace.spark.worker", "headrace.spark.daemon")
"""What users import, what they run, and what Spark starts."""
IN_USERS_HANDS = (
    ("headrace.spark.handle", "Run"),
    ("headrace.actuate.controller", "BoundKept"),
    ("headrace.runtime.operators.process", "KeyState"),
    ("headrace.runtime.operators.process", "Queue"),
)
"""Classes whose objects users get without importing them: every public method is for users."""
FOR_EXPERIMENTS = {
    "complete_only": "a test in the compiled loop over keys, which an experiment of its own would have to copy whole; "
    "bench hash-engines shows with it what the thesis says of sessions in fixed-size buffers (SCALLA 2.6)",
}
"""Options that no job sets, only experiments, each with the reason why the product has it."""
MAX_MODULES, MAX_LINES = 16, 400
LARGE_ROOMS: dict[str, str] = {}
"""Packages that have more modules, each with the reason."""
SAME_NAME = {
    "bench": "the command, and the experiments it runs",
    "state": "the command, and the state it looks into",
    "demo": "the command in a room with its workflow",
    "explain": "the command in a room with what it explains",
    "reduce": "the operator in a room with its variants",
}
"""Names that a module and a package share, each with the reason."""


@pytest.fixture(scope="module")
def product() -> dict[str, Module]:
    return modules_under(SRC, APART)


def test_every_module_is_reached_from_an_entry(product: dict[str, Module]) -> None:
    graph = grimp.build_graph("headrace", exclude_type_checking_imports=True, cache_dir=None)
    reached: set[str] = set()
    todo = list(ENTRIES)
    while todo:
        name = todo.pop()
        if name in product and name not in reached:
            reached.add(name)
            todo += [*graph.find_modules_directly_imported_by(name), name.rpartition(".")[0]]
    assert sorted(product.keys() - reached) == []


def test_everything_defined_is_used_by_the_product(product: dict[str, Module]) -> None:
    exported = product["headrace"].imported
    users = {exported[name] for name in headrace.__all__}
    for module, name in IN_USERS_HANDS:
        assert name in product[module].defined, f"{module}.{name} is gone: take it off the list"
    roots: list[Named] = [("headrace", "__getattr__"), ("headrace", "__dir__"), ("headrace.cli.main", "main")]
    assert Reached(product, roots, (*users, *IN_USERS_HANDS)).dead() == []


@pytest.mark.parametrize("option", FOR_EXPERIMENTS)
def test_what_only_experiments_set_is_named(option: str) -> None:
    setting = {path.relative_to(SRC).parts[0] for path in SRC.rglob("*.py") if f"{option}=True" in path.read_text()}
    assert setting == {"bench"}, f"if a job can set {option}, or nobody does, take it off the list"


def test_no_name_occurs_twice() -> None:
    modules, classes = Counter[str](), Counter[str]()
    for path in SRC.rglob("*.py"):
        modules[path.parent.name if path.stem == "__init__" else path.stem] += 1
        classes.update(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef))
    assert {name for name, n in modules.items() if n > 1} <= SAME_NAME.keys()
    assert [name for name, n in classes.items() if n > 1] == []


def test_rooms_and_files_stay_small() -> None:
    paths = [path for path in SRC.rglob("*.py") if path.stem != "__init__"]
    per_room = Counter(str(path.parent.relative_to(SRC)) for path in paths)
    assert {room for room, n in per_room.items() if n > MAX_MODULES} <= LARGE_ROOMS.keys()
    assert [path.name for path in paths if len(path.read_text().splitlines()) > MAX_LINES] == []
    assert not any(path.stem in ("utils", "helpers", "common", "base") for path in paths)


HOUSE = {
    "used": "def called(): ...\nclass Kept:\n    def asked(self): ...\n    def forgotten(self): ...\n",
    "unused": "LIMIT = 1\ndef first(): second()\ndef second(): first()\n",
    "entry": "from house import used as u\ndef main():\n    u.called()\n    u.Kept().asked()\n",
}


def test_what_only_its_own_kind_refers_to_is_dead(tmp_path: Path) -> None:
    for name, text in HOUSE.items():
        (tmp_path / "house" / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / "house" / f"{name}.py").write_text(text)
    found = Reached(modules_under(tmp_path / "house", ()), [("house.entry", "main")], ())
    unused = [f"house.unused.{name}" for name in ("LIMIT", "first", "second")]
    assert found.dead() == [*unused, "house.used.Kept.forgotten"]


def test_the_walks_of_the_map_lead_through_files_that_exist() -> None:
    guide = (SRC.parent.parent / "CONTRIBUTING.md").read_text()
    walks = guide[guide.index("### Three walks") : guide.index("## How code should look")]
    stops = [stop for stop in re.findall(r"`([a-z_/]+/[a-z_]+)`", walks) if not stop.startswith("tests/")]
    assert len(stops) > 40
    files = [str(path.relative_to(SRC).with_suffix("")) for path in SRC.rglob("*.py")]
    assert [stop for stop in stops if not any(f"/{file}".endswith(f"/{stop}") for file in files)] == []
