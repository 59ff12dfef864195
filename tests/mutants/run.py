"""Do the tests notice single mistakes? Plants those of ``mistakes.toml`` one at a time, and runs the tests named there.

    python -m tests.mutants.run [--only NAME ...] [--jobs 1] [--fresh]

By hand, and before a release: it takes an hour or two. The code itself is not touched, mistakes are planted in a copy.
What was found is kept beside the copies: a run that was stopped goes on where it was, and a row is run again when
its text, its file or its tests have changed (or with ``--fresh``). Exits with 1 where fewer than 95 % are noticed.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

from stream_ccsd.numerics.compiling import contents
from tests.mutants.table import ROOT, Mistake, TableError, read_table

WANTED = 0.95
NOTICED, SURVIVED, SKIPPED, UNFIT = "noticed", "survived", "skipped", "does not fit"
# Longest that the tests of one mistake may take: one that never ends is noticed as well.
_PATIENCE = 1200.0
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", "build", "dist")
# In the copies, what was compiled is known by its place alone: a mistake in Python must not compile everything anew.
# What the code as it is compiles to is kept for the next run; each mistake in compiled code gets a place of its own.
_COMPILING = Path("stream_ccsd", "numerics", "compiling.py")
_KNOWN_BY_NAME = '\n\ndef contents(file: str) -> str:  # type: ignore[no-redef]\n    return "planted"\n'


class Field:
    """A copy of the code in which one mistake after the other is planted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        stamp = hashlib.sha256(contents(str(ROOT / _COMPILING)).encode()).hexdigest()[:12]
        self._cache = folder.with_name(f"{folder.name}-compiled-{stamp}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(ROOT, folder, ignore=_LEFT_OUT, symlinks=True)
        with (folder / _COMPILING).open("a", encoding="utf-8") as file:
            file.write(_KNOWN_BY_NAME)

    def test(self, tests: Sequence[str], cache: Path | None = None) -> tuple[str, str]:
        """Run tests until one fails: what came of it, and which one failed or why none ran."""
        report = self.folder.with_suffix(".xml")
        report.unlink(missing_ok=True)
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        environment["NUMBA_CACHE_DIR"] = str(cache or self._cache)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutants.quick", "--hypothesis-profile=mutants"]
        command += [f"--junitxml={report}", *dict.fromkeys(tests)]
        with tempfile.TemporaryFile("w+", encoding="utf-8") as said:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=said, stderr=said, start_new_session=True
            )
            try:
                code = process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                return NOTICED, f"no end within {_PATIENCE:g} s"
            finally:
                _end(process)
            said.seek(0)
            last = (said.read().strip().splitlines() or [""])[-1]
        if code in (4, 5):
            return UNFIT, last
        if not report.exists():  # a mistake has ended the process
            return NOTICED, f"exit {code}"
        cases = [*ElementTree.parse(report).iter("testcase")]
        failed = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
        if failed:
            return NOTICED, failed[0].get("name", "")
        skipped = [c for c in cases if c.find("skipped") is not None]
        return (SKIPPED, "tests were skipped") if skipped else (SURVIVED, f"{len(cases)} tests passed")

    def plant(self, mistake: Mistake) -> tuple[str, str]:
        """What the tests say of a mistake; afterwards the code is as it was."""
        path = self.folder / mistake.file
        try:
            planted = mistake.planted(self.folder)
        except TableError as error:
            return UNFIT, str(error)
        before, times = path.read_bytes(), path.stat()
        with tempfile.TemporaryDirectory() as cache:
            path.write_text(planted, encoding="utf-8")
            try:
                return self.test(mistake.tests, Path(cache) if mistake.is_compiled(ROOT) else None)
            finally:
                path.write_bytes(before)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all that its tests have started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Results:
    """What was found, a line a mistake, kept for the next run."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self._path, self._lock = path, threading.Lock()
        if fresh:
            path.unlink(missing_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self._known = {known["key"]: known for known in map(json.loads, lines)}

    def of(self, mistake: Mistake) -> tuple[str, str] | None:
        known = self._known.get(_key(mistake))
        return (known["outcome"], known["what"]) if known else None

    def keep(self, mistake: Mistake, outcome: str, what: str) -> None:
        line = {"key": _key(mistake), "name": mistake.name, "outcome": outcome, "what": what}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _key(mistake: Mistake) -> str:
    """Of the row, its file and its tests."""
    digest = hashlib.sha256(repr(mistake).encode())
    for name in dict.fromkeys((mistake.file, *(test.partition("::")[0] for test in mistake.tests))):
        path = ROOT / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()


def main() -> int:
    """Returns what the process exits with."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mistakes only; a part of a name will do")
    parser.add_argument("--jobs", type=int, default=1, help="copies in which mistakes are planted at once")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs have found")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without mistakes first")
    options = parser.parse_args()
    mistakes = [m for m in read_table() if not options.only or any(part in m.name for part in options.only)]
    place = Path(tempfile.gettempdir()) / f"stream-ccsd-mutants-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
    place.mkdir(exist_ok=True)
    results = Results(place / "results.jsonl", options.fresh)
    waiting = [m for m in mistakes if results.of(m) is None]
    found = {m.name: results.of(m) for m in mistakes if m not in waiting}
    print(f"{len(mistakes)} mistakes, {len(found)} known from before ({place / 'results.jsonl'})", flush=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one run at a time
        fields = [Field(place / str(i)) for i in range(options.jobs)]
        if waiting and not options.unchecked:
            print("the tests without any mistake, which also compiles ...", flush=True)
            outcome, what = fields[0].test([test for m in waiting for test in m.tests])
            if outcome not in (SURVIVED, SKIPPED):
                print(f"they do not pass as the code is: {what}", flush=True)
                return 1

        def run(mistake: Mistake) -> None:
            field, begun = fields.pop(), time.monotonic()
            try:
                found[mistake.name] = field.plant(mistake)
            finally:
                fields.append(field)
            outcome, what = found[mistake.name]
            if outcome in (NOTICED, SURVIVED):
                results.keep(mistake, outcome, what)
            seconds = time.monotonic() - begun
            print(f"{len(found):3}/{len(mistakes)} {mistake.name}: {outcome} ({what}; {seconds:.0f} s)", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(run, waiting))
    return _judge(found)


def _judge(found: dict[str, tuple[str, str]]) -> int:
    counts = Counter(outcome for outcome, _ in found.values())
    judged = counts[NOTICED] + counts[SURVIVED]
    share = counts[NOTICED] / judged if judged else 0.0
    print(", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + f": {share:.1%} noticed, {WANTED:.0%} wanted")
    for name, (outcome, what) in found.items():
        if outcome != NOTICED:
            print(f"  {name}: {outcome} ({what})")
    return 0 if share >= WANTED and not counts[UNFIT] else 1


if __name__ == "__main__":
    sys.exit(main())
