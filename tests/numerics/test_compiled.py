"""Compiled code is kept on disk. No process may take code that another compiled for something else."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from stream_ccsd.numerics.compiling import COMPILED_FROM
from stream_ccsd.runtime.profile_update import enter
from tests.test_rules import imported

ROOT = Path(__file__).parents[2]
NOT_COMPILED_IN = {"errors", "files", "transaction"}
# Small ones that take arrays of several types of numbers.
OF_ANY_KEYS = {"vector.first_from", "index.square_distance", "comparison._ordered", "vector.order_of"}

FIT = """
import sys
from dataclasses import replace
from replay.sources.simulator.population import simulate
from stream_ccsd.fitting import fit
from stream_ccsd.settings import Settings
stream = simulate(accounts=12, days=40, fraud_share=0.0, seed=2).transactions
for sizes in sys.argv[1:]:
    window, history = map(int, sizes.split(","))
    print(fit(stream, Settings(window=window, local_history=history, neighbours=20, library_stride=5)).version)
"""


SHIP = """
import sys
from pathlib import Path
from stream_ccsd.numerics.compiling import ship_kernels, shipped_kernels
print(ship_kernels(Path(sys.argv[1]), shipped_kernels()))
"""


@pytest.mark.early
def test_models_of_other_windows_are_the_same_whoever_compiled_first(tmp_path):
    """Each in a process of its own, then all in one that finds what the others left, then with what a wheel brings."""
    for name in ("stream_ccsd", "replay"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(cache, *command):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / cache)}
        command = [sys.executable, "-c", *command]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path).stdout

    sizes = ["20,30", "4,4", "8,12"]
    separately = "".join(run("cache", FIT, each) for each in sizes)
    assert run("cache", FIT, *sizes) == separately
    assert int(run("cache", SHIP, str(tmp_path / "cache"))) > 10
    # A package that is newly installed on another machine has other times, and compiles nothing.
    for path in (tmp_path / "stream_ccsd").rglob("*.py"):
        os.utime(path, (1.0, 1.0))
    assert run("empty", FIT, *sizes) == separately
    compiled = [{path.name for path in (tmp_path / name).rglob("*.nbc")} for name in ("stream_ccsd", "cache", "empty")]
    assert compiled[0] == compiled[1] == compiled[2]
    # And once: not again for a constant as an argument, or for arrays that can be written to.
    versions = Counter(name.rpartition("-")[0] for name in compiled[1])
    assert {name for name, count in versions.items() if count > 1} <= OF_ANY_KEYS


def test_what_was_compiled_is_known_by_all_that_it_was_compiled_from():
    """Compiled functions take in what they call and the constants they use, from whatever file."""
    ours = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (ROOT / "stream_ccsd").rglob("*.py")}
    wanted = [name for name, path in ours.items() if "stream_ccsd.numerics.compiling import" in path.read_text("utf-8")]
    assert len(wanted) > 10
    seen = set()
    while wanted:
        name = wanted.pop()
        if name in seen or name not in ours:
            continue
        seen.add(name)
        wanted += [part for whole in imported(ours[name]) for part in (whole, whole.rpartition(".")[0])]
    there = {Path(name).stem for name in COMPILED_FROM}
    # Sentences, statuses and random numbers are in no compiled function.
    assert {name.split(".")[1] for name in seen} - there <= NOT_COMPILED_IN


def test_a_changed_constant_is_compiled_anew(tmp_path):
    shutil.copytree(ROOT / "stream_ccsd", tmp_path / "stream_ccsd", ignore=shutil.ignore_patterns("__pycache__"))
    command = "from stream_ccsd.numerics.compiling import contents; from stream_ccsd.runtime import profile_update; "
    command += "print(contents(profile_update.__file__))"
    stamps = []
    for addition in ("", "# other\n"):
        with (tmp_path / "stream_ccsd" / "scores.py").open("a") as file:
            file.write(addition)
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        stamps.append(subprocess.check_output([sys.executable, "-c", command], env=environment, cwd=tmp_path))
    assert stamps[0] != stamps[1]


def test_no_compiled_function_has_two_record_types(model):
    """The compiler names a record type by a number of its own process: two layouts in one place could share a name."""
    from stream_ccsd.engine import Engine
    from stream_ccsd.transaction import Transaction

    Engine(model).process(Transaction("a", 1.0, 1.0, "c", "m", "1"))
    machines = [signature[0].field_dict for signature in enter.signatures]
    records = {(str(context["accounts"]), str(context["batch"])) for context in machines}
    assert len(records) == 1
