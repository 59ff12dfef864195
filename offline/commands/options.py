"""Options that several evaluations and benchmarks share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

DataRootOption = Annotated[
    Path | None,
    typer.Option("--data", envvar="STREAM_CCSD_DATA", help="Folder with the public data sets (banksim/, ucr/)."),
]
TransactionsOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="FILE",
        help="Transactions: .csv, .jsonl (also .gz, .xz) or .parquet; by default a simulated stream.",
    ),
]
CacheOption = Annotated[bool, typer.Option("--cache/--no-cache", help="Keep and reuse results that took minutes.")]


def cache_folder() -> Path:
    """Where results that took minutes are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stream-ccsd"
