"""How the process begins and ends: signals while it loads, consoles that cannot show a name, faults of our own."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import RUN


def start(*arguments, code=RUN, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )


def wait_for_the_door(process):
    """Until the entry point has taken over the signals: a process that catches SIGTERM is past Python's own start."""
    while process.poll() is None:
        caught = re.search(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process.pid}/status").read_text())
        if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("arguments", "number", "code"),
    [
        (["replay", "--customers", "40"], signal.SIGINT, 130),
        (["replay", "--customers", "40"], signal.SIGTERM, 143),
        (["fit", "--data", "x.csv", "--model", "m"], signal.SIGINT, 130),
        (["worker", "--broker", "kafka://127.0.0.1:1"], signal.SIGTERM, 0),
    ],
)
def test_stopped_while_it_still_loads(tmp_path, arguments, number, code):
    for delay in (0.0, 0.02, 0.1):
        process = start(*arguments, cwd=tmp_path)
        wait_for_the_door(process)
        time.sleep(delay)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        # A quick command may have come to its own end before the signal did.
        assert process.returncode in (code, 1), errors
        assert b"Traceback" not in errors
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_console_that_knows_ascii_only(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    process = start("simulate", "--out", tmp_path / "é.csv", "--customers", "3", "--days", "2", env=environment)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert b".csv" in said
    process = start("fit", "--data", tmp_path / "none é.csv", "--model", tmp_path / "m", env=environment)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"there is no file" in errors
    assert b"Traceback" not in errors


FAULTY = """
import sys
from stream_ccsd.cli import main
def broken():
    raise KeyError("a fault of ours")
main.app = broken
sys.argv[0] = "stream-ccsd"
main.run()
"""


def test_a_fault_of_ours_says_so_and_shows_its_details_on_request():
    process = start("replay", code=FAULTY)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 70
    assert b"a fault of stream-ccsd (KeyError: 'a fault of ours')" in errors
    assert b"--debug" in errors
    assert b"Traceback" not in errors
    process = start("replay", "--debug", code=FAULTY)
    assert b"Traceback" in process.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", "--out", "s.csv", "--customers", str(10**9)],
        ["replay", "--customers", str(10**8), "--days", "10000"],
    ],
)
def test_more_than_fits_into_memory_is_refused_at_once(tmp_path, arguments):
    process = start(*arguments, cwd=tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"GiB of memory" in errors
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    first = f"{sys.executable} -c {RUN!r} simulate --help | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", first], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
