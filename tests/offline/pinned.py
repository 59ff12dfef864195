"""Results of the evaluations as they were when they were last meant to change.

Sums are compared to nine digits, as in :mod:`tests.test_pinned`; long lists by their length and sum. What other
libraries learn (trees, forests) is left out: another version of them may learn it otherwise. Whoever changes a result
on purpose writes the new figures with ``python -m tests.offline.pinned`` and says in the commit why they are others.
"""

import csv
import json
import os
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offline.fraud.data import load_labelled
from offline.fraud.paper import run_paper
from offline.fraud.simulated import run_patterns
from offline.fraud.stream import run_periods, run_stream
from replay.sources.simulator.population import simulate
from stream_ccsd.cli.main import app
from stream_ccsd.transaction import Schema
from tests.conftest import SMALL

PLACE = Path(__file__).with_name("pinned.json")
SCHEMA = Schema(account="user", time="when", merchant="shop", id="ref")
CLUSTERING = ["evaluate", "clustering", "--datasets", "Coffee,ItalyPowerDemand", "--no-cache", "--json", "-"]

_LEARNT = {"half_space_trees", "isolation_forest", "gradient_boosting"}
_TIMED = {"seconds", "mean_seconds", "choosing_seconds"}
# A model's version is a hash of its every bit and of its format: nine digits say more.
_HASHED = {"model"}


def write_stream(path):
    """A labelled file, as a user would have it."""
    simulated = simulate(accounts=80, days=110, fraud_share=0.5, seed=11)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "when", "amount", "category", "shop", "ref", "is_fraud"])
        for t in simulated.transactions:
            writer.writerow([t.account, t.time, t.amount, t.category, t.merchant, t.id, int(t.id in simulated.fraud)])


def run_clustering(root):
    done = CliRunner().invoke(app, [*CLUSTERING, "--data", str(root / "ucr")])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def figures(result, path=""):
    """Every value of a result by its place in it."""
    if isinstance(result, dict):
        return {
            place: value
            for key, part in result.items()
            if key not in _LEARNT | _TIMED | _HASHED
            for place, value in figures(part, f"{path}/{key}").items()
        }
    if isinstance(result, list) and all(isinstance(v, int | float) for v in result):
        return {f"{path}/length": len(result), f"{path}/sum": float(sum(result))}
    if isinstance(result, list):
        return figures(dict(enumerate(result)), path)
    return {path: result}


def check(result, name):
    """The result says what the pinned one said, key by key."""
    pinned, now = json.loads(PLACE.read_text())[name], figures(result)
    assert now.keys() == pinned.keys()
    for key, value in pinned.items():
        assert now[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key


def _all(root):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream.csv"
        write_stream(path)
        data = load_labelled(path, SCHEMA, "is_fraud")
    return {
        "paper": run_paper(data, 0, SMALL, full_table=True),
        "stream": run_stream(data, 0, SMALL, baselines=True),
        "time": run_periods(data, 0, SMALL, baselines=True),
        "patterns": run_patterns(60, 60, 0, SMALL),
        "clustering": run_clustering(root),
    }


if __name__ == "__main__":
    results = _all(Path(os.environ["STREAM_CCSD_DATA"]))
    PLACE.write_text(json.dumps({name: figures(result) for name, result in results.items()}, indent=1) + "\n")
