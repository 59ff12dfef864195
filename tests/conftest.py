import csv
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from replay.run.fitting import population_settings
from replay.sources.simulator.population import SimulatedStream, simulate
from replay.sources.source import FileSource
from stream_ccsd.engine import Engine
from stream_ccsd.fitting import fit
from stream_ccsd.model.model import Model
from stream_ccsd.records import score_schema
from stream_ccsd.result import Result
from stream_ccsd.settings import Settings

# A shell that starts this in the background has it ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared two-core machine makes timing-based deadlines flaky; correctness is what these tests are about.
settings.register_profile("project", deadline=None, derandomize=True)
settings.load_profile("project")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """The whole suite shares the cores, with one process more: those on Kafka and with browsers often wait.

    What a person picks out runs in one, as it is.
    """
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.option.collectonly
    return min((os.cpu_count() or 2) + 1, 4) if whole else 0


_KAFKA = "tests/kafka/"


class _OneBroker(LoadScopeScheduling):
    """Tests of a module go together: what they share (a replay, a state, a data set) is made once, not in each process.

    All on Kafka go together: one broker, and no more workers at once than each test means to have. By their folder, not
    by a mark: marks of groups are part of a test's name in xdist 3.8, which pytest 9.2 does not let it change, and says
    nothing.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _KAFKA if nodeid.startswith(_KAFKA) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _OneBroker:
    return _OneBroker(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kafka's come first, as the largest group; while its process compiles, the others' leave compiled code alone."""

    def turn(item: pytest.Item) -> int:
        return 0 if item.nodeid.startswith(_KAFKA) else 1 if item.get_closest_marker("early") else 2

    items.sort(key=turn)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Of all processes of a test run, one at a time is in here."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


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
def model(stream, tmp_path_factory) -> Model:
    normal = stream.normal_accounts()
    # With nothing compiled yet this takes a minute; a process that waits for it finds the compiled code on disk.
    with one_at_a_time(tmp_path_factory.getbasetemp().parent):
        fitted = fit((t for t in stream.transactions if t.account in normal), SMALL)
        Engine(fitted).process(stream.transactions[0])
    return fitted


@pytest.fixture(scope="session")
def population_model(stream) -> Model:
    """The same accounts with all that a simulated transaction says: country and device, hours and days."""
    normal = stream.normal_accounts()
    return fit((t for t in stream.transactions if t.account in normal), population_settings(SMALL))


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
    return pa.RecordBatch.from_pylist(rows, score_schema())


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
