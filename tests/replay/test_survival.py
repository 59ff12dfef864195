"""The command itself, killed and starved: what it leaves behind can always be resumed, and ends up the same."""

import json
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from tests.commands import RUN

FILES = ("scores.parquet", "alerts.jsonl", "dead_letters.jsonl", "drift.jsonl")


def command(stream_file, model_folder, folder, *more):
    places = ["--out", str(folder / "out"), "--state", str(folder / "state.db")]
    arguments = ["replay", "--data", str(stream_file), "--model", str(model_folder), "--label", "pattern"]
    return [sys.executable, "-c", RUN, *arguments, *places, *more]


def contents(folder):
    return {name: (folder / "out" / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def whole(stream_file, model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(command(stream_file, model_folder, folder), capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr  # there are dead letters in it
    return contents(folder)


def position(state):
    try:
        with sqlite3.connect(f"{state.as_uri()}?mode=ro", uri=True) as reader:
            return reader.execute("SELECT position FROM progress").fetchone()[0]
    except sqlite3.Error:
        return 0


def test_killed_twenty_times(whole, stream_file, model_folder, tmp_path):
    chance, state, kills, reached = random.Random(1), tmp_path / "state.db", 0, set()
    while True:
        more = ["--resume"] if state.exists() else []
        # Slow enough that twenty moments fit in; every few records are a transaction of their own.
        speed = ["--speed", "400"] if kills < 20 else []
        process = subprocess.Popen(
            command(stream_file, model_folder, tmp_path, *speed, *more), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        if kills == 20:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 3, errors
            break
        before, deadline = position(state), time.monotonic() + 60
        while position(state) == before and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.25))
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
        reached.add(position(state))
    assert len(reached) > 15  # it moved on between the kills
    assert contents(tmp_path) == whole


def test_what_a_kill_leaves_is_not_part_of_a_new_state(whole, stream_file, model_folder, tmp_path):
    state, wal = tmp_path / "state.db", tmp_path / "state.db-wal"
    process = subprocess.Popen(
        command(stream_file, model_folder, tmp_path, "--speed", "400", "--until", "50"), stderr=subprocess.DEVNULL
    )
    while position(state) < 100 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert wal.stat().st_size > 0
    again = subprocess.run(command(stream_file, model_folder, tmp_path), capture_output=True, text=True, check=False)
    assert again.returncode == 1
    assert "state.db, state.db-wal, state.db-shm" in again.stderr
    state.unlink()
    done = subprocess.run(command(stream_file, model_folder, tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert contents(tmp_path) == whole


def test_ctrl_c_stops_at_a_whole_batch(whole, stream_file, model_folder, tmp_path):
    process = subprocess.Popen(
        command(stream_file, model_folder, tmp_path, "--speed", "300", "--json", "-"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while position(tmp_path / "state.db") < 50 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    summary = json.loads(out)
    assert not summary["complete"]
    assert summary["transactions"] + summary["dead_letters"] == summary["position"] == position(tmp_path / "state.db")
    done = subprocess.run(
        command(stream_file, model_folder, tmp_path, "--resume"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert contents(tmp_path) == whole


def test_a_full_disk(whole, stream_file, model_folder, tmp_path):
    """A quota on the size of files stands for it: the writes fail the same way."""
    limit = 150_000

    def starve():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    starved = subprocess.run(
        command(stream_file, model_folder, tmp_path, "--speed", "100000"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=starve,
    )
    assert starved.returncode == 1
    assert "the disk is full or failing" in starved.stderr
    assert "Traceback" not in starved.stderr
    done = subprocess.run(
        command(stream_file, model_folder, tmp_path, "--resume"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert contents(tmp_path) == whole
