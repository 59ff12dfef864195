"""Runs of the fraud protocols over seeds: in parallel, and kept, so that asking again costs nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from offline.fraud.data import Kind, LabelledData
from offline.fraud.paper import run_paper
from offline.fraud.stream import run_periods, run_stream
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import Progress, write_whole
from stream_ccsd.settings import Settings

# Part of every cache key: raised whenever a change of the code can change a result.
RESULTS_VERSION = 3

SENSITIVITY: dict[str, list[dict[str, Any]]] = {
    "window K": [{"window": k} for k in (20, 35, 50, 65)],
    "attenuation rho": [{"rho_category": r, "rho_merchant": r} for r in (0.1, 0.25, 0.5, 1.0)],
    "boost eta": [{"eta_category": e, "eta_merchant": e} for e in (1.0, 1.7, 3.0)],
}


def evaluate_fraud(
    data: LabelledData,
    protocols: list[str],
    seeds: list[int],
    settings: Settings,
    *,
    split: Kind = "sets",
    full_table: bool = True,
    baselines: bool = True,
    trees: bool = True,
    sensitivity: bool = False,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """All runs, by protocol and seed, as plain values for JSON. ``cache`` is a folder, or None to compute anew.

    How accounts are split is for the stream; where labels are unknown, ``settings.contamination`` says how much fraud
    there may be in what is fitted on.
    """
    common: dict[str, Any] = {
        "settings": settings.to_dict(),
        "split": split,
        "full_table": full_table,
        "baselines": baselines,
        "trees": trees,
    }
    jobs = [{"protocol": p, "seed": s, **common} for p in protocols for s in seeds]
    if sensitivity:
        for name, changes in SENSITIVITY.items():
            for change in changes:
                varied = replace(settings, **change).to_dict()
                job = {"protocol": "paper", "seed": seeds[0], "settings": varied, "split": split}
                job |= {"full_table": False, "baselines": False, "trees": False}
                jobs.append({**job, "varied": name, "value": next(iter(change.values()))})
    results = _run_all(data, jobs, cache, progress)
    runs = [r for r, job in zip(results, jobs, strict=True) if "varied" not in job]
    varied_runs = [
        {"setting": job["varied"], "value": job["value"], "val": r["val"], "test": r["test"]}
        for r, job in zip(results, jobs, strict=True)
        if "varied" in job
    ]
    return {"data": data_facts(data), "runs": runs, **({"sensitivity": varied_runs} if sensitivity else {})}


def data_facts(data: LabelledData) -> dict[str, Any]:
    """What was evaluated on."""
    fraud_accounts = data.fraud_accounts()
    return {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "transactions": len(data.transactions),
        "accounts": len(fraud_accounts),
        "fraud_accounts": int(fraud_accounts.sum()),
        "fraud_transactions": int(data.fraud.sum()),
        "kinds": [] if data.kinds is None else sorted(set(data.kinds[data.fraud])),
        "refused": data.refused,
    }


def _run_job(data: LabelledData, job: dict[str, Any]) -> dict[str, Any]:
    settings = Settings.from_dict(job["settings"])
    if job["protocol"] == "paper":
        return run_paper(data, job["seed"], settings, job["full_table"])
    run = run_stream if job["protocol"] == "stream" else run_periods
    return run(data, job["seed"], settings, job["baselines"], job["split"], job["trees"])


def _run_all(
    data: LabelledData, jobs: list[dict[str, Any]], cache: Path | None, progress: Progress | None
) -> list[dict[str, Any]]:
    """Every job once: from the cache, or by a process of its own. Data goes in as Parquet, results come out as JSON."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = cache if cache is not None else Path(scratch)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StreamCcsdError(f"cannot use the cache folder {folder}: {error.strerror}. Try --no-cache.") from error
        places = [folder / f"fraud-{_key(data, job)}.json" for job in jobs]
        waiting = [(job, place) for job, place in zip(jobs, places, strict=True) if not place.exists()]
        done = len(jobs) - len(waiting)
        if progress:
            progress(done, len(jobs))
        table = Path(scratch) / "data.parquet"
        if waiting:
            data.save(table)
        with ThreadPoolExecutor(_cores()) as pool:
            for _ in pool.map(lambda task: _run_apart(table, *task), waiting):
                done += 1
                if progress:
                    progress(done, len(jobs))
        return [json.loads(place.read_text(encoding="utf-8")) for place in places]


def _cores() -> int:
    """Those this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_apart(table: Path, job: dict[str, Any], place: Path) -> None:
    """Run one job in a process of its own, with one thread: there are as many jobs at once as cores."""
    command = [sys.executable, "-m", "offline.fraud.evaluate", str(table), json.dumps(job), str(place)]
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **threads})
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise StreamCcsdError(f"the {job['protocol']} protocol failed with seed {job['seed']}: {last}")


def _write(table: Path, job: dict[str, Any], place: Path) -> None:
    result = _run_job(LabelledData.load(table), job)
    write_whole(place, json.dumps(result))


def _key(data: LabelledData, job: dict[str, Any]) -> str:
    described = json.dumps([RESULTS_VERSION, data.fingerprint, job], sort_keys=True)
    return hashlib.sha256(described.encode()).hexdigest()[:24]


if __name__ == "__main__":
    _write(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
