"""Structured logs: a JSON object a line on standard error, or text for people."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from stream_ccsd.kafka.client import is_overheard
from stream_ccsd.kafka.settings import WorkerSettings

# Attributes every record has; whatever else there is was passed as ``extra``.
_USUAL = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data", "stack"}
_SERVICES = ("consumer", "internals", "table")
# They report every rebalance as tables of several lines; their warnings and errors are kept. Faust's services log
# under the modules of their classes, ours among them.
_TALKATIVE = ("faust", "aiokafka", "mode", "asyncio", *(f"stream_ccsd.kafka.faust.{name}" for name in _SERVICES))
# Those that say the same thousands of times while a broker is away, and ours that may with every message or try.
_REPETITIVE = ("aiokafka", "faust", "mode", "asyncio", "stream_ccsd.kafka.producer", "stream_ccsd.kafka.worker.scoring")
_QUIET = 10.0
_ENDS = "stream_ccsd.worker"


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, and what else was said."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said, default=str)


class TextFormatter(logging.Formatter):
    """The same for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line, with what else was said behind it."""
        line = super().format(record)
        said = " ".join(f"{name}={value}" for name, value in extras(record).items())
        return f"{line}  {said}" if said else line


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


@dataclass
class _Repeated:
    """A line that was shown, and how often it came again since."""

    record: logging.LogRecord
    last: float
    shown: float
    count: int = 0


class Repeats(logging.Filter):
    """Lets a line through once, then counts it: it is shown again, with the count, every so often and when it is over.

    Lines are the same if they come from the same place in the code and begin alike, whatever they go on with.
    """

    def __init__(self, handler: logging.Handler, every: float = 60.0, quiet: float = _QUIET) -> None:
        super().__init__()
        self._handler, self._every, self._quiet = handler, every, quiet
        self._lines: dict[tuple[str, int, str], _Repeated] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show it now."""
        if not record.name.startswith(_REPETITIVE) or hasattr(record, "repeated"):
            return True
        if is_overheard():
            return False
        key, now = (record.name, record.lineno, str(record.msg)[:32]), time.monotonic()
        with self._lock:
            known = self._lines.get(key)
            if known is None:
                self._lines[key] = _Repeated(record, now, now)
                return True
            known.record, known.last, known.count = record, now, known.count + 1
            return False

    def tell(self, everything: bool = False) -> None:
        """Show what has been counted for long enough, or is over; at the end, everything."""
        now, due = time.monotonic(), []
        with self._lock:
            for key, line in list(self._lines.items()):
                over = everything or now - line.last > self._quiet
                if over:
                    del self._lines[key]
                if line.count and (over or now - line.shown > self._every):
                    due.append((line.record, line.count))
                    line.count, line.shown = 0, now
        for record, count in due:
            record.repeated = count
            self._handler.handle(record)


def set_up(settings: WorkerSettings) -> Repeats:
    """Log as the settings say, for the whole process; what is returned is to be asked now and then."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if settings.log_format == "text" else JsonFormatter())
    repeats = Repeats(handler)
    handler.addFilter(repeats)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # At its finest, the client logs what it sends, passwords among it.
    logging.getLogger("aiokafka.conn").setLevel(max(logging.INFO, root.level))
    if settings.log_level == "info":
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
    return repeats


def last_words(reason: str, who: str = "worker") -> None:
    """Say why a process ends, as the last line there is: threads that go on say nothing behind it."""
    root = logging.getLogger()
    for handler in root.handlers:
        for repeats in [f for f in handler.filters if isinstance(f, Repeats)]:
            repeats.tell(everything=True)
        handler.addFilter(lambda record: record.name == _ENDS)
    logging.getLogger(_ENDS).error("the %s ends", who, extra={"reason": reason})
    sys.stderr.flush()


@contextmanager
def quiet_clients() -> Iterator[None]:
    """For commands that log nothing themselves: the client's warnings on standard error, each once, then counted."""
    logger, handler = logging.getLogger("aiokafka"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter())
    handler.setLevel(logging.WARNING)
    repeats = Repeats(handler)
    handler.addFilter(repeats)
    before = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        repeats.tell(everything=True)
        logger.removeHandler(handler)
        logger.propagate = before
