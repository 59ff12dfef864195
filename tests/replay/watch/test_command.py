"""``stream-ccsd watch`` as a person starts it: what it refuses, what it waits for, and how it ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from replay.watch.demo import Demo
from replay.watch.server import is_loopback, listen, url_of
from stream_ccsd.errors import StreamCcsdError
from tests.commands import RUN

PATIENCE = 60.0
TOKEN = 'token = "0123456789abcdef"'


def start(*arguments, code=RUN, **options):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def refused(*arguments, **options):
    process = start("watch", "--port", "0", *arguments, **options)
    try:
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode in (1, 2), said
    assert "Traceback" not in said
    return said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "--users FILE"),
        (["--host", "::"], "--users FILE"),
        (["--host", "nowhere.invalid"], "is no address of this machine"),
        (["--user-header", "X-User"], "needs --trusted-proxy"),
        (["--user-header", "X-User", "--trusted-proxy", "x"], "is no address"),
        (["--role", "judge"], "needs --user-header"),
        (["--users", "none.toml"], "cannot be read"),
        (["--users", "open.toml"], "chmod 600"),
        (["--state", "nowhere/town.db"], "there is no folder nowhere"),
        (["--claim-minutes", "0"], "--claim-minutes"),
        (["--claim-minutes", "nan"], "--claim-minutes"),
        (["--speed", "quick"], "none of: max"),
        (["--state", "town.db", "--speed", "7"], "that of the demo"),
        (["--keep", "5000"], "only with --from"),
        (["--who", ""], "is no name"),
        (["--who", "a\nb"], "is no name"),
        (["--port", "70000"], "65535"),
        (["--json", "nowhere/x.json"], "cannot write to"),
    ],
)
def test_what_is_refused_at_the_start(tmp_path, arguments, said):
    if "::" in arguments and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    (tmp_path / "open.toml").write_text(f"[ann]\n{TOKEN}\n")
    (tmp_path / "open.toml").chmod(0o644)
    before = {path.name for path in tmp_path.iterdir()}
    assert said in refused(*arguments, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_port_that_is_taken(tmp_path):
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        said = refused("--port", port, "--state", "town.db", cwd=tmp_path)
    assert f"port {port} of 127.0.0.1 is in use" in said
    assert "name another --port" in said


def test_where_it_listens():
    with listen("localhost", 0) as here, listen("0.0.0.0", 0) as anywhere:
        assert is_loopback(here)
        assert not is_loopback(anywhere)
        assert url_of(here, "localhost") == f"http://localhost:{here.getsockname()[1]}/"
        assert url_of(anywhere, "0.0.0.0").startswith("http://localhost:")


def test_without_the_packages_of_the_page():
    without = "import sys; sys.modules['starlette'] = sys.modules['uvicorn'] = sys.modules['jinja2'] = None; " + RUN
    process = start("watch", "--port", "0", code=without)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "pip install 'stream-ccsd[page]'" in said
    helped = start("watch", "--help", code=without)
    assert "--user-header" in helped.communicate(timeout=PATIENCE)[0]
    assert helped.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_waits_for_a_state_and_ends_well(tmp_path, number):
    process = start("watch", "--state", "town.db", "--port", "0", "--no-browser", cwd=tmp_path)
    assert "waiting for town.db" in process.stdout.readline()
    process.send_signal(number)
    _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert said == ""
    assert not list(tmp_path.iterdir())


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_demo_that_breaks_off_says_why():
    with Demo(speed="quick") as demo:
        demo._process.wait(PATIENCE)
        with pytest.raises(StreamCcsdError, match=r"(?s)too early \(exit code 1\).*'quick' is none of"):
            demo.check()
        folder = demo.state.parent
    assert not folder.exists()


def test_a_demo_ends_with_its_block():
    with Demo() as demo:
        demo.check()
        pid, folder = demo._process.pid, demo.state.parent
        assert alive(pid)
    assert not alive(pid)
    assert not folder.exists()


def test_a_demo_ends_with_whoever_started_it():
    """Also where that one is killed without a word."""
    code = (
        "import time; from replay.watch.demo import Demo; d = Demo(); print(d._process.pid, d.state.parent, flush=True)"
    )
    process = start(code=code + "; time.sleep(600)")
    pid, folder = process.stdout.readline().split()
    assert alive(pid)
    process.kill()
    process.communicate()
    end = time.monotonic() + PATIENCE
    while alive(pid):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert Path(folder).is_dir()
    for path in (*Path(folder).glob("*"), Path(folder)):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.skipif(find_spec("replay.watch.charts") is None, reason="templates and charts are not there yet")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_as_a_whole(tmp_path, number):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = start("watch", "--port", "0", "--json", "-", "--speed", "400", cwd=tmp_path, env=environment)
    url = json.loads(process.stdout.readline())["url"]
    with httpx.Client(base_url=url) as client:
        for view in ("now", "queue", "tune", "model", "audit"):
            assert client.get(f"/{view}").status_code == 200
        with client.stream("GET", "/events?after=0.0", timeout=PATIENCE) as events:
            assert next(line for line in events.iter_lines() if line == "event: alert")
            process.send_signal(number)  # while it is read
            _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())
