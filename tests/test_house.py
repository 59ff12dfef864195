"""The house rules that a machine can check: style, types, layers, layout. They run with the tests, so CI has them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = [
    p for p in (ROOT / "stream_ccsd").rglob("*.py") if not {"cli", "kafka"} & set(p.parts) and p.name != "__main__.py"
]


@pytest.mark.parametrize("command", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_static_checks(command):
    result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", sorted((ROOT / "stream_ccsd" / "cli").glob("*.py")), ids=lambda p: p.name)
def test_consoles_and_tables_are_made_in_one_place(path):
    """Where names stay names, and numbers are not cut."""
    made = {
        node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    }
    assert path.name == "output.py" or not made & {"Console", "Table", "add_column"}


@pytest.mark.parametrize("path", CORE, ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_imports_nothing_above_it(path):
    above = {"replay", "offline", "pandas", "faust", "river", "typer", "rich", "tests"}
    assert not {name.partition(".")[0] for name in imported(path)} & above


@pytest.mark.parametrize(
    "path", [p for d in ("stream_ccsd", "replay", "offline") for p in (ROOT / d).rglob("*.py")], ids=str
)
def test_nothing_is_pickled(path):
    forbidden = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert not {name.partition(".")[0] for name in imported(path)} & forbidden
