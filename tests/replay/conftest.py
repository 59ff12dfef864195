import csv

import pytest

from replay.source import FileSource

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
