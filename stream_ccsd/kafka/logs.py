"""Structured logs: a JSON object a line on standard error, or text for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from stream_ccsd.kafka.settings import WorkerSettings

# Attributes every record has; whatever else there is was passed as ``extra``.
_USUAL = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "data", "stack"}
# They report every rebalance as tables of several lines; their warnings and errors are kept. Faust's services log
# under the modules of their classes, ours among them.
_TALKATIVE = ("faust", "aiokafka", "mode", "asyncio", "stream_ccsd.kafka.consumer", "stream_ccsd.kafka.table")


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


def set_up(settings: WorkerSettings) -> None:
    """Log as the settings say, for the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if settings.log_format == "text" else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # At its finest, the client logs what it sends, passwords among it.
    logging.getLogger("aiokafka.conn").setLevel(max(logging.INFO, root.level))
    if settings.log_level == "info":
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
