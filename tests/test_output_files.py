"""How every output is written: plain files whole or not at all, links followed, pipes written to."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading

import pytest

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import check_writable, replacing, write_whole
from tests.commands import RUN


def read_in_background(path):
    found = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()))
    thread.start()
    return thread, found


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    thread, found = read_in_background(pipe)
    write_whole(pipe, "hello")
    thread.join(timeout=10)
    assert found == [b"hello"]
    assert pipe.is_fifo()


def test_a_link_is_followed_and_stays_a_link(tmp_path):
    real, link, second = tmp_path / "real", tmp_path / "link", tmp_path / "second"
    real.write_text("old")
    link.symlink_to(real)
    second.symlink_to(link)
    write_whole(second, b"new")
    assert second.is_symlink()
    assert link.is_symlink()
    assert real.read_text() == "new"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "made")
    write_whole(dangling, "made")
    assert dangling.is_symlink()
    assert (tmp_path / "made").read_text() == "made"


def test_nothing_is_left_of_a_write_that_failed(tmp_path):
    place = tmp_path / "file"
    place.write_text("old")

    def half():
        with replacing(place) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(StreamCcsdError, match="No space left"):
        half()
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_places_that_cannot_be_written_are_refused_before_the_work(tmp_path):
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for place in (tmp_path, tmp_path / "none" / "file", circle, tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(StreamCcsdError, match="cannot write"):
            check_writable(place)
    check_writable(tmp_path / "file")


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", RUN, *map(str, arguments)], capture_output=True, text=True, check=False, **options
    )


def test_json_goes_into_a_pipe_and_through_a_link(tmp_path):
    pipe, real, link = tmp_path / "pipe", tmp_path / "real", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(real)
    thread, found = read_in_background(pipe)
    simulated = ["simulate", "--out", tmp_path / "s.csv", "--customers", "3", "--days", "2", "--json"]
    assert command(*simulated, pipe).returncode == 0
    thread.join(timeout=10)
    assert json.loads(found[0])["customers"] == 3
    assert pipe.is_fifo()
    assert command(*simulated, link).returncode == 0
    assert link.is_symlink()
    assert json.loads(real.read_text())["days"] == 2


def test_a_model_behind_a_link_is_replaced_where_it_is(model, tmp_path):
    from stream_ccsd.model.model import Model

    model.save(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    model.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Model.load(tmp_path / "link").version == model.version
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    def starve():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    for name in ("s.csv", "s.parquet", "s.csv.gz"):
        out = tmp_path / name
        done = command("simulate", "--out", out, "--customers", "300", "--days", "20", preexec_fn=starve)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert "cannot write" in done.stderr
    assert list(tmp_path.iterdir()) == []
