"""What benchmarks share: peers that may not be installed, memory, and threads."""

from __future__ import annotations

import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from stream_ccsd.errors import StreamCcsdError


def peer(module: str) -> Any:
    """Import a library we compare with, or say how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise StreamCcsdError(
            f"this command needs {module.partition('.')[0]}, which is not installed: "
            "install stream-ccsd with its extra [compare], or [dev]"
        ) from error


def peak_rss_mb() -> float:
    """Highest resident memory of this process so far, in MB (1e6 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike getrusage, not inherited from the process that started this one
        peak = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
