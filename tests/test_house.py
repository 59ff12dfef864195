"""The house rules that a machine can check: style, types, layers, layout. They run with the tests, so CI has them."""

import ast
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for package in ("stream_ccsd", "replay", "offline") for path in (ROOT / package).rglob("*.py"))

# The rooms of the house, in the order in which they may build on each other: each imports only from those before it.
# The README's map shows them in this order, several in a row where that reads better.
BASICS = [
    "errors",
    "status",
    "numeric",
    "compiling",
    "progress",
    "sampling",
    "sums",
    "vector",
    "memory",
    "writing",
    "calendar",
    "page",
    "scores",
    "fields",
    "settings",
]
METHOD = ["transaction", "codes", "account", "batch", "divergence", "library", "score", "alert", "verdict"]
CORE = [*BASICS, *METHOD, "stores", "step", "result", "engine", "fitting", "term_texts", "records", "clustering"]
# Lessons stand behind the core: they use river.
ORDER = [*CORE, "lessons", "cli", "kafka", "replay", "offline"]
# What the core does without: Kafka, tables, terminals.
KAFKA = {"faust", "mode", "aiokafka", "aiohttp", "confluent_kafka", "msgspec", "prometheus_client", "rocksdict"}
ABOVE_THE_CORE = {*KAFKA, "pandas", "river", "typer", "rich"}


@pytest.mark.early
@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_static_checks(command):
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@cache
def tree(path: Path) -> ast.Module:
    """A file as it is parsed, once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> frozenset[str]:
    """What a file imports, wherever in it, as far as that is a module: late imports count, too."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} imports by a relative name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def room(parts: Sequence[str]) -> str | None:
    """The room of a module; None for what is not ours, and for the package's own front doors."""
    if parts[0] in ("replay", "offline"):
        return parts[0]
    inner = parts[1] if parts[0] == "stream_ccsd" and len(parts) > 1 else "__init__"
    return None if inner in ("__init__", "__main__") else inner


def room_of(path: Path) -> str | None:
    return room(path.relative_to(ROOT).with_suffix("").parts)


def test_every_room_has_its_place_in_the_order():
    assert {room_of(path) for path in SOURCES} - {None} == set(ORDER)


@pytest.mark.parametrize("path", [p for p in SOURCES if room_of(p)], ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_imports_only_from_rooms_before_it(path):
    here = ORDER.index(room_of(path))
    modules = [name.split(".") for name in imported(path)]
    # What the package offers to others under its own name is taken from where it is made.
    assert not [m for m in modules if m[0] == "stream_ccsd" and m[1:] and m[1] not in ORDER]
    assert not {room(m) for m in modules} - {None, *ORDER[: here + 1]}
    if ORDER[here] in CORE:
        assert not {m[0] for m in modules} & ABOVE_THE_CORE


def test_no_module_imports_itself_by_way_of_others():
    """Inside a package, too; what is imported for types alone counts, because a reader follows it as well."""
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in SOURCES}
    names = {path: ".".join(p[:-1] if p[-1] == "__init__" else p) for path, p in parts.items()}
    modules = set(names.values())
    graph = {
        names[path]: {
            found
            for name in imported(path)
            for found in [name if name in modules else name.rpartition(".")[0]]
            if found in modules - {names[path]}
        }
        for path in SOURCES
    }
    assert len(graph) == len(SOURCES)
    TopologicalSorter(graph).prepare()  # raises, and names the circle


def test_nothing_imports_the_tests():
    assert not [path for path in SOURCES if any(name.partition(".")[0] == "tests" for name in imported(path))]


def test_the_map_of_the_readme_has_this_order():
    """Row by row; within a row, rooms are named as it reads best."""
    rows = re.findall(r"^\| (`[^|]+`) *\|", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = [[Path(name).with_suffix("").parts for name in re.findall("`([^`]+)`", row)] for row in rows]
    rooms = [[room(parts) or parts[-1] for parts in row] for row in named]
    shown = [[ORDER.index(name) for name in row if name in ORDER] for row in rooms]
    shown = [row for row in shown if row]
    assert {"divergence", "engine", *ORDER[-4:]} <= {ORDER[place] for row in shown for place in row}
    for before, after in pairwise(shown):
        assert max(before) < min(after), [ORDER[place] for place in (*before, *after)]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_consoles_and_tables_are_made_in_one_place(path):
    """Where names stay names, and numbers are not cut."""
    made = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
    }
    assert path.name == "output.py" or not made & {"Console", "Table", "add_column"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_pickled(path):
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert not {name.partition(".")[0] for name in imported(path)} & forbidden
