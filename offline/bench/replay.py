"""A file through the replay: in memory, and with everything kept in SQLite; each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from offline.peers import peak_rss_mb
from replay.run.fitting import fit_file, write_simulated
from replay.run.session import Session
from replay.sources.simulator.population import Population
from replay.sources.source import FileSource
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress
from stream_ccsd.model.model import Model
from stream_ccsd.settings import Settings

# Share of the accounts that the model is fitted on; all of them are replayed.
_FITTED = 0.5


def measure_replay(data: Path | None, customers: int, progress: Progress) -> dict[str, Any]:
    """Records a second both ways, the share of time outside scoring, and peak memory."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if data is None:
            data = folder / "simulated.csv"
            write_simulated(Population(customers, 60), data)
        progress(1, 4)
        fit_file(data, Settings(), share=_FITTED).model.save(folder / "model")
        progress(2, 4)
        memory = _apart(data, folder, "")
        progress(3, 4)
        durable = _apart(data, folder, "state.db")
        size = (folder / "state.db").stat().st_size
        progress(4, 4)
    return {
        "data": data.name,
        "events": memory["events"],
        "events_per_s": memory["events_per_s"],
        "durable_events_per_s": durable["events_per_s"],
        "durable_share": durable["events_per_s"] / memory["events_per_s"],
        "outside_scoring_share": 1 - memory["scoring_share"],
        "durable_outside_scoring_share": 1 - durable["scoring_share"],
        "peak_rss_mb": memory["peak_rss_mb"],
        "durable_peak_rss_mb": durable["peak_rss_mb"],
        "state_mb": size / 1e6,
        "library_windows": memory["library_windows"],
    }


def _apart(data: Path, folder: Path, state: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "offline.bench.replay", str(data.absolute()), str(folder), state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StreamCcsdError(f"the replay failed: {done.stderr.strip().rpartition(chr(10))[2]}")
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _replay(data: Path, folder: Path, state: str) -> dict[str, Any]:
    session = Session(
        FileSource(data), Model.load(folder / "model"), folder / f"out{state}", folder / state if state else None
    )
    return session.run() | {"peak_rss_mb": peak_rss_mb()}


if __name__ == "__main__":
    print(json.dumps(_replay(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])))
