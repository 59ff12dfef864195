"""The table of single mistakes: what is changed where, and which tests must fail by it."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

from stream_ccsd.numerics.compiling import COMPILED_FROM

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("mistakes.toml")


class TableError(Exception):
    """A row of the table does not fit the code any more."""


@dataclass(frozen=True)
class Mistake:
    """One mistake. ``tests`` are given to pytest as they stand; one of them has to fail."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def planted(self, root: Path = ROOT) -> str:
        """The file with the mistake in it."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found = text.count(self.before)
        if found != 1:
            raise TableError(f"{self.name}: expected its text before once in {self.file}, found it {found} times")
        return text.replace(self.before, self.after)

    def is_compiled(self, root: Path = ROOT) -> bool:
        """Whether compiled code has to be made anew for it: it lies in such a function, or among its constants."""
        if not any(self.file.startswith(f"stream_ccsd/{room}") for room in COMPILED_FROM):
            return False
        text = (root / self.file).read_text(encoding="utf-8")
        line = text[: text.index(self.before)].count("\n") + 1
        around = [
            node
            for node in ast.parse(text).body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            and min([node.lineno, *(d.lineno for d in node.decorator_list)]) <= line <= (node.end_lineno or 0)
        ]
        if not around:
            return True
        made = [d.func for d in around[0].decorator_list if isinstance(d, ast.Call)]
        names = {made_by.id for made_by in made if isinstance(made_by, ast.Name)}
        return bool(names & {"compiled", "inner"})

    def needs_a_broker(self) -> bool:
        """Tests on Kafka take the longest."""
        return any(test.startswith("tests/kafka/") for test in self.tests)


def read_table(path: Path = TABLE) -> list[Mistake]:
    """All rows, those first that take the least time."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["mistake"]
    mistakes = [Mistake(**{**row, "tests": tuple(row["tests"])}) for row in rows]
    return sorted(mistakes, key=lambda m: (m.is_compiled(), m.needs_a_broker()))
