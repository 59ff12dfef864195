import csv
import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import settings

from replay.harvest import SCORES
from replay.simulator import SimulatedStream, simulate
from replay.source import FileSource
from stream_ccsd.engine import Engine, Result
from stream_ccsd.fitting import fit
from stream_ccsd.library.model import Model
from stream_ccsd.settings import Settings

# A shared two-core machine makes timing-based deadlines flaky; correctness is what these tests are about.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the public data sets; tests that need it are skipped where it is absent."""
    root = os.environ.get("STREAM_CCSD_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("real data not found: set STREAM_CCSD_DATA to the folder with banksim/ and ucr/")
    return Path(root)


# Small enough for the naive double sums, large enough that every path of the engine is taken.
SMALL = Settings(window=8, local_history=12, neighbours=40, library_stride=5)


@pytest.fixture(scope="session")
def stream() -> SimulatedStream:
    return simulate(accounts=40, days=60, fraud_share=0.3, seed=3)


@pytest.fixture(scope="session")
def model(stream) -> Model:
    normal = stream.normal_accounts()
    return fit((t for t in stream.transactions if t.account in normal), SMALL)


def with_settings(model: Model, **changes) -> Model:
    """The same library under other settings that need no new fit."""
    return replace(model, settings=replace(model.settings, **changes))


@pytest.fixture(scope="session")
def results(model, stream) -> list[Result]:
    return [*map(Engine(model).process, stream.transactions)]


def scores_at(times, **columns) -> pa.RecordBatch:
    """Scores of one account at these times; other columns can be given."""
    plain = {"account": "a", "status": "scored", "score": 1.0, "maximum": 1.0, "alert": False, "position": 1}
    rows = [{**plain, **{n: v[i] for n, v in columns.items()}, "time": float(t)} for i, t in enumerate(times)]
    return pa.RecordBatch.from_pylist(rows, SCORES)


FIELDS = ("account", "time", "amount", "category", "merchant", "id")


@pytest.fixture(scope="session")
def stream_file(stream, tmp_path_factory):
    """The simulated stream as a CSV file with labels, and every kind of record the engine has a policy for."""
    path = tmp_path_factory.mktemp("stream") / "stream.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*FIELDS, "pattern"])
        for number, t in enumerate(stream.transactions, start=1):
            row = [getattr(t, name) for name in FIELDS]
            writer.writerow([*row, stream.fraud.get(t.id, "")])
            if number % 400 == 0:
                writer.writerow([*row[:2], "much", *row[3:], ""])  # not a number
            if number % 500 == 0:
                writer.writerow([*row, ""])  # a copy
            if number % 600 == 0:
                writer.writerow([row[0], 0.0, *row[2:5], f"late{number}", ""])  # from the past
    return path


@pytest.fixture
def source(stream_file):
    return FileSource(stream_file, label="pattern")


@pytest.fixture(scope="session")
def model_folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    model.save(folder)
    return folder
