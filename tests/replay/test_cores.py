"""Fits and model updates are the same to the bit on one core, on several, and with any number of threads."""

import json
import os
import signal
import subprocess
import sys

import pytest

from stream_ccsd.model.registry import Registry

POOLS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS")
FILES = ("out/scores.parquet", "out/alerts.jsonl", "out/drift.jsonl", "replay.db.lessons")


def run(folder, *core, **threads):
    environment = {name: value for name, value in os.environ.items() if name not in POOLS} | threads
    command = [sys.executable, "-m", "tests.replay.cores", str(folder), *core]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def left(folder):
    """Scores and model updates, and what is in the models: their files are named by what is in them."""
    models = Registry(folder / "replay.db.models")
    found = {name: (folder / name).read_bytes() for name in FILES}
    return found | {name: (models.folder / name / "model.json").read_bytes() for name in models.names()}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be kept to one core here")
def test_cores_and_threads_change_nothing(tmp_path):
    """Killed with several threads, and resumed on one core."""
    first = run(tmp_path, **dict.fromkeys(POOLS, "2"))
    assert first.returncode == -signal.SIGKILL, first.stderr
    core = str(min(os.sched_getaffinity(0)))
    second = run(tmp_path, core)
    assert second.returncode == 0, second.stderr
    whole = left(tmp_path / "whole")
    assert left(tmp_path / f"whole on {core}") == whole
    assert left(tmp_path / "killed") == whole
    models = [json.loads(content) for name, content in whole.items() if name not in FILES]
    assert {m["facts"]["lessons"]["weighed_by"] for m in models if "lessons" in m["facts"]} - {"sum"}
