#!/usr/bin/env python3
"""A wheel that brings its compiled code along, so that the first score does not wait for a compiler.

    python deploy/wheel.py [FOLDER]        into dist/ by default; run it with each Python that the wheel is for

What is compiled fits this version of Python and of numba, and any processor of x86-64-v3. Others take the same wheel
and compile for themselves. Needs the package's dependencies, with the extras ``kafka`` and ``page`` for theirs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "stream_ccsd", "replay", "offline")
# Between them they compile what scoring, learning and the page need.
COMMANDS = (
    "replay --customers 30 --days 60 --state {folder}/town.db --out {folder}/out",
    "replay --customers 30 --days 60 --learn weekly --adapt --verdicts-from fraud --out {folder}/out",
    "budget --state {folder}/town.db",
)
SHIP = "import sys; from pathlib import Path; from stream_ccsd.numerics.compiling import ship_kernels; "
SHIP += "print(ship_kernels(Path(sys.argv[1]), Path(sys.argv[2])), 'compiled functions')"


def main(target: Path) -> None:
    """Compile from a copy of the sources, put the result into it, make the wheel of that."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, copy = Path(scratch), Path(scratch) / "sources"
        copy.mkdir()
        for name in SOURCES:
            source = ROOT / name
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, copy / name, ignore=skipped) if source.is_dir() else shutil.copy(source, copy)
        cache = folder / "cache"
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(copy)}
        for command in COMMANDS:
            arguments = command.format(folder=folder).split()
            run([sys.executable, "-m", "stream_ccsd", *arguments], folder, environment, quiet=True)
        shipped = copy / "stream_ccsd" / "kernels"
        run([sys.executable, "-c", SHIP, str(cache), str(shipped)], folder, environment)
        wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(copy)]
        run(wheel, folder, {**os.environ})


def run(command: list[str], folder: Path, environment: dict[str, str], *, quiet: bool = False) -> None:
    """A command that must succeed; what it prints is shown if it does not."""
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=quiet, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}\n{(done.stdout or '') + (done.stderr or '')}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve())
