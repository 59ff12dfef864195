"""Compiled code is kept on disk. What one process compiled must never be taken for something else by another."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from numba.core.types import Record

from stream_ccsd.step import run

ROOT = Path(__file__).parent.parent

FIT = """
import sys
from dataclasses import replace
from replay.simulator import simulate
from stream_ccsd.fitting import fit
from stream_ccsd.settings import Settings
stream = simulate(accounts=12, days=40, fraud_share=0.0, seed=2).transactions
for sizes in sys.argv[1:]:
    window, history = map(int, sizes.split(","))
    print(fit(stream, Settings(window=window, local_history=history, neighbours=20, library_stride=5)).version)
"""


@pytest.mark.early
def test_models_of_other_windows_are_the_same_whoever_compiled_first(tmp_path):
    """Each in a process of its own, then all in one that finds what the others left."""
    for name in ("stream_ccsd", "replay"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.nbi", "*.nbc"))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def versions(*sizes):
        command = [sys.executable, "-c", FIT, *sizes]
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path).stdout

    sizes = ["20,30", "4,4", "8,12"]
    apart = "".join(versions(each) for each in sizes)
    assert versions(*sizes) == apart


def test_no_compiled_function_has_two_record_types(model):
    """The compiler names a record type by a number of its own process: two layouts in one place could share a name."""
    from stream_ccsd.engine import Engine
    from stream_ccsd.transaction import Transaction

    Engine(model).process(Transaction("a", 1.0, 1.0, "c", "m", "1"))
    records = {
        tuple(str(a.dtype) for a in signature if isinstance(getattr(a, "dtype", None), Record))
        for signature in run.signatures
    }
    assert len(records) == 1
