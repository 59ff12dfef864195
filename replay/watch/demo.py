"""The built-in simulated stream, replayed by a process of its own into a folder that goes with it.

As a program (``python -m replay.watch.demo``) this is that process: it ends when its standard input does, which is when
whoever started it is gone, however that happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType

from stream_ccsd.errors import StreamCcsdError

# Transactions a second: about five minutes for the stream, and its first alert within the first second.
SPEED = "100"
_LAST_WORDS = 2000
# Exit codes of a replay that came to its end; with 3 some records were refused.
_FINE = (0, 3)


class Demo:
    """A replay that somebody can watch; it ends with the block."""

    def __init__(self, speed: str = SPEED) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="stream-ccsd-watch-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.state = folder / "town.db"
        self._log = folder / "replay.log"
        arguments = ["replay", "--state", self.state, "--out", folder / "output", "--speed", speed, "--learn", "daily"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "replay.watch.demo", *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the server, which then ends this one
            )

    def check(self) -> None:
        """Whether it goes on, or came to its end.

        Raises
        ------
        StreamCcsdError
            If it broke off; with its last words.
        """
        code = self._process.poll()
        if code is not None and code not in _FINE:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip()[-_LAST_WORDS:]
            raise StreamCcsdError(f"the replay of the town ended too early (exit code {code}): {said or 'no reason'}")

    def close(self) -> None:
        """End it, and remove what it wrote."""
        self._process.kill()  # nobody waits for its report
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._folder.cleanup()

    def __enter__(self) -> Demo:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _end_with_parent() -> None:
    os.read(0, 1)  # not by sys.stdin: its lock would be held when the process ends
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from stream_ccsd.cli.main import run

    run()
