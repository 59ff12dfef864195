"""The table of mistakes fits the code; ``python -m tests.mutants.run`` plants them."""

import ast
from collections import Counter

from tests.mutants.table import ROOT, read_table

MISTAKES = read_table()


def names_of_tests(file):
    """Names of the tests of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_are_enough_mistakes_all_of_them_different():
    assert len(MISTAKES) >= 60
    assert not [name for name, count in Counter(m.name for m in MISTAKES).items() if count > 1]
    assert not [what for what, count in Counter((m.file, m.before, m.after) for m in MISTAKES).items() if count > 1]


def test_every_mistake_can_be_planted_and_the_file_is_still_python():
    for mistake in MISTAKES:
        planted = mistake.planted()
        assert mistake.before != mistake.after, mistake.name
        if mistake.file.endswith(".py"):
            original = (ROOT / mistake.file).read_text(encoding="utf-8")
            assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(original)), f"{mistake.name} changes nothing"


def test_every_test_that_must_fail_exists():
    for mistake in MISTAKES:
        assert mistake.tests, f"{mistake.name} names no test"
        for test in mistake.tests:
            file, _, name = test.partition("::")
            assert (ROOT / file).exists(), f"{mistake.name}: there is no {file}"
            assert not name or name.partition("[")[0] in names_of_tests(file), (
                f"{mistake.name}: {file} has no test {name}"
            )
