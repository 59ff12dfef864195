"""Scores and alerts as they were when they were last meant to change, on the simulator and on BankSim.

Sums are compared to nine digits, not to the bit: another processor rounds some sums in another order. Rarities have
seven: they follow from tails whose fit stops within 1e-5 of the best one, at a place that the last bit decides (with
AVX-512 and without it, BankSim's differ by 2e-9). Which alerts there are is compared exactly. Whoever changes a score
on purpose prints the new figures with ``python -m tests.test_pinned`` (BankSim where ``STREAM_CCSD_DATA`` says so) and
says in the commit why they are others.
"""

import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from replay.run.fitting import fit_file, simulated_replay
from replay.run.session import Session
from replay.sources.source import FileSource, Wanted
from stream_ccsd.settings import Settings

PINNED = json.loads((Path(__file__).parent / "pinned.json").read_text())
# Long enough for every score to have said something.
DAYS = 75.0
RARITIES = ("score", "maximum")


def figures(source, model, folder):
    """What a replay found, in a few numbers that anything would change."""
    Session(source, model, folder).run()
    scores = pq.read_table(folder / "scores.parquet")
    found = {"transactions": scores.num_rows}
    for name in ("evidence", "takeover", "divergence", *RARITIES):
        found[name] = float(np.nansum(scores[name].to_numpy(zero_copy_only=False)))
    alerts = [json.loads(line)["id"] for line in (folder / "alerts.jsonl").read_text().splitlines()]
    found |= {"alerts": len(alerts), "which": hashlib.sha256("".join(alerts).encode()).hexdigest()[:16]}
    return found


def simulator(folder):
    model, source = simulated_replay(150, 90, 0, Settings())
    return figures(source, model, folder)


def banksim(folder, root):
    path = root / "banksim" / "bs140513_032310.csv.xz"
    fitted = fit_file(path, Settings(), label="fraud", share=0.5, until=DAYS)
    wanted = Wanted(until=DAYS, without=fitted.accounts)
    return figures(FileSource(path, wanted=wanted), fitted.model, folder)


def check(found, name):
    assert found.keys() == PINNED[name].keys()
    for key, value in PINNED[name].items():
        digits = 1e-7 if key in RARITIES else 1e-9
        assert found[key] == (pytest.approx(value, rel=digits) if isinstance(value, float) else value), key


def test_the_simulator_is_scored_as_before(tmp_path):
    check(simulator(tmp_path), "simulator")


def test_banksim_is_scored_as_before(tmp_path, data_root):
    check(banksim(tmp_path, data_root), "banksim")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        now = {**PINNED, "simulator": simulator(Path(scratch) / "a")}
        if "STREAM_CCSD_DATA" in os.environ:
            now["banksim"] = banksim(Path(scratch) / "b", Path(os.environ["STREAM_CCSD_DATA"]))
    json.dump(now, sys.stdout, indent=2)
    print()
