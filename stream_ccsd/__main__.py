"""The entry point of the process: ``stream-ccsd``, and ``python -m stream_ccsd``.

It takes over the signals before it imports what a command needs. So Ctrl-C while Python is still loading shows no
traceback either.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

# Commands that end well when they are asked to end, also this early.
_MAY_END = ("watch", "worker")


def run() -> None:
    """Run the command line; see :func:`stream_ccsd.cli.main.run` for its exit codes."""
    ends_well = sys.argv[1:2] and sys.argv[1] in _MAY_END

    def leave(number: int, frame: Any) -> None:
        # Nothing has begun yet. No cleaning up: modules may be half imported.
        os._exit(0 if ends_well else 128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, leave)
    from stream_ccsd.cli.main import run as run_command  # noqa: PLC0415

    run_command()


if __name__ == "__main__":
    run()
