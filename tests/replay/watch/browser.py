"""A real Chromium, real servers, and a wire between them that can be cut."""

import json
import selectors
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from tests.commands import RUN

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), None)
# As root, and without a word to anybody else.
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


@contextmanager
def chromium():
    """A browser; without one the test is skipped, and says so."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: install it (Debian: chromium) for the tests in a browser")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here: it comes with the extra [dev]")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_over(*arguments):
    """``stream-ccsd watch`` in a process of its own; gives its address and the process."""
    command = [sys.executable, "-c", RUN, "watch", "--port", "0", "--no-browser", "--json", "-", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield json.loads(line)["url"], process
    finally:
        process.terminate()
        process.communicate(timeout=30)


class Wire:
    """A way to a server that somebody can cut: what runs over it breaks off, and comes through again when mended."""

    def __init__(self, url):
        self._target = urlsplit(url).hostname, urlsplit(url).port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._pairs = set()
        self._whole = True
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}/"

    def cut(self):
        self._whole = False
        for pair in list(self._pairs):
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self):
        self._whole = True

    def close(self):
        self.cut()
        self._listening.close()

    def _accept(self):
        while True:
            try:
                here, _ = self._listening.accept()
            except OSError:
                return
            if not self._whole:
                here.close()
                continue
            try:
                there = socket.create_connection(self._target)
            except OSError:
                here.close()
                continue
            threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here, there):
        pair = (here, there)
        self._pairs.add(pair)
        with selectors.DefaultSelector() as ready, suppress(OSError):
            ready.register(here, selectors.EVENT_READ, there)
            ready.register(there, selectors.EVENT_READ, here)
            open_ends = True
            while open_ends:
                for key, _ in ready.select():
                    data = key.fileobj.recv(65536)
                    if not data:
                        open_ends = False
                        break
                    key.data.sendall(data)
        self._pairs.discard(pair)
        for end in pair:
            end.close()
