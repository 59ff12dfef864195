"""The project's rules that a machine can check: style, types, the order of packages. They run with the tests, in CI."""

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for package in ("stream_ccsd", "replay", "offline") for path in (ROOT / package).rglob("*.py"))

# The modules and packages in each package, in the order in which they may build on each other: each imports only from
# those before it. The README's map shows the first three in this order.
BASICS = ["errors", "files", "calendar", "numerics", "scores", "fields", "settings"]
METHOD = ["transaction", "account", "verdict", "divergence", "evidence", "model", "alerts"]
CORE = [*BASICS, *METHOD, "stores", "runtime", "result", "engine", "fitting", "records", "clustering"]
ORDER = {
    # Learning and drift stand behind the core: they use river.
    "stream_ccsd": [*CORE, "drift", "learning", "cli", "kafka"],
    "stream_ccsd.kafka": [
        "codec",
        "client",
        "settings",
        "producer",
        "ops",
        "faust",
        "topics",
        "follow",
        "worker",
        "learner",
        "commands",
    ],
    "replay": [
        "text",
        "sources",
        "state",
        "explain",
        "compare",
        "budget",
        "cases",
        "run",
        "produce",
        "mirror",
        "watch",
        "commands",
    ],
    "replay.watch": [
        "protocol",
        "formats",
        "charts",
        "auth",
        "pages",
        "live",
        "views",
        "actions",
        "service",
        "app",
        "server",
        "demo",
    ],
    "offline": ["published", "peers", "clustering", "fraud", "bench", "commands"],
}
PACKAGES = ["stream_ccsd", "replay", "offline"]
# What the core does without: Kafka, tables, terminals.
KAFKA = {"faust", "mode", "aiokafka", "aiohttp", "confluent_kafka", "msgspec", "prometheus_client", "rocksdict"}
ABOVE_THE_CORE = {*KAFKA, "pandas", "river", "typer", "rich"}


@pytest.mark.early
@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_static_checks(command):
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def imported(path: Path) -> frozenset[str]:
    """What a file imports, wherever in it, as far as that is a module: late imports count, too."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} imports by a relative name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def part(name: str, package: str) -> str | None:
    """The module or package of that package in which a name is; None for what is outside, and for front doors."""
    inner = name.removeprefix(package + ".").partition(".")[0] if name.startswith(package + ".") else None
    return None if inner == "__main__" else inner


@pytest.mark.parametrize("package", ORDER)
def test_each_module_imports_only_from_those_before_it(package):
    order = ORDER[package]
    names = {path: part(name_of(path), package) for path in SOURCES}
    assert {name for name in names.values() if name} == set(order), "a module or package has no place in the order"
    wrong = [
        f"{name_of(path)} imports {name}"
        for path, here in names.items()
        if here
        for name in imported(path)
        if (there := part(name, package)) in order and order.index(there) > order.index(here)
    ]
    assert not wrong


def test_each_package_imports_only_from_those_before_it():
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in SOURCES
        for name in imported(path)
        if name.partition(".")[0] in PACKAGES
        and PACKAGES.index(name.partition(".")[0]) > PACKAGES.index(name_of(path).partition(".")[0])
    ]
    assert not wrong


def test_the_core_does_without_kafka_tables_and_terminals():
    wrong = [
        f"{name_of(path)} imports {name}"
        for path in SOURCES
        if part(name_of(path), "stream_ccsd") in CORE
        for name in imported(path)
        if name.partition(".")[0] in ABOVE_THE_CORE
    ]
    assert not wrong


def test_only_one_package_knows_faust():
    wrong = [
        name_of(path)
        for path in SOURCES
        if {name.partition(".")[0] for name in imported(path)} & {"faust", "mode"}
        and not name_of(path).startswith(("stream_ccsd.kafka.faust.", "offline.bench."))
    ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others():
    """What is imported for types alone counts, because a reader follows it as well."""
    names = {path: name_of(path) for path in SOURCES}
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


def test_no_two_public_classes_have_one_name():
    names = [(node.name, name_of(p)) for p in SOURCES for node in parsed(p).body if isinstance(node, ast.ClassDef)]
    counts = Counter(name for name, _ in names if not name.startswith("_"))
    assert not sorted((name, place) for name, place in names if counts[name] > 1)


def test_nothing_imports_the_tests():
    assert not [path for path in SOURCES if any(name.partition(".")[0] == "tests" for name in imported(path))]


def test_the_map_of_the_readme_has_this_order():
    """Row by row; within a row, packages are named as it reads best."""
    order = [*ORDER["stream_ccsd"], "replay", "offline"]
    rows = re.findall(r"^\| (`[^|]+`) *\|", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    named = [[Path(name).with_suffix("").parts for name in re.findall("`([^`]+)`", row)] for row in rows]
    shown = [[order.index(p[1] if p[0] == "stream_ccsd" else p[0]) for p in row if {*p} & {*order}] for row in named]
    shown = [row for row in shown if row]
    assert {"divergence", "engine", *order[-4:]} <= {order[place] for row in shown for place in row}
    for before, after in pairwise(shown):
        assert max(before) < min(after), [order[place] for place in (*before, *after)]


def test_consoles_and_tables_are_made_in_one_place():
    """Where names stay names, and numbers are not cut."""
    made = {
        name_of(path): node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        in {"Console", "Table", "add_column"}
    }
    assert set(made) == {"stream_ccsd.cli.output"}


def test_nothing_is_pickled():
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert not [path for path in SOURCES if {name.partition(".")[0] for name in imported(path)} & forbidden]
