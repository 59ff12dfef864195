"""A model from a file: on all accounts, or on a share of those that no label speaks against."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from replay.source import FileSource, Wanted
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fitting import fit
from stream_ccsd.library.model import Model
from stream_ccsd.progress import Progress
from stream_ccsd.sampling import shuffled
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Refusal, Schema, Transaction


@dataclass(frozen=True)
class FittedFile:
    """A model, the accounts it knows, how many were left out and why, and how many records were no transactions."""

    model: Model
    accounts: frozenset[str]
    left_out_label: int
    left_out_share: int
    refused: int


def fit_file(
    path: Path,
    settings: Settings,
    *,
    schema: Schema | None = None,
    encoding: str | None = None,
    label: str | None = None,
    share: float = 1.0,
    seed: int = 0,
    until: float | None = None,
    progress: Progress | None = None,
) -> FittedFile:
    """Fit on a file's accounts; with a ``label`` column, on those without any labelled transaction."""
    by_account: dict[str, list[Transaction]] = {}
    suspect: set[str] = set()
    refused = 0
    source = FileSource(path, schema, label=label, encoding=encoding, wanted=Wanted(until=until))
    for item in source.items():
        if isinstance(item.parsed, Refusal):
            refused += 1
            continue
        by_account.setdefault(item.parsed.account, []).append(item.parsed)
        if item.label:
            suspect.add(item.parsed.account)
    normal = set(by_account) - suspect
    accounts = frozenset(shuffled(normal, seed)[: math.ceil(share * len(normal))])
    if not accounts:
        raise StreamCcsdError(f"{path} has no account to fit on ({refused:,} records refused)")
    # In time order within each account; the order among accounts does not matter to a fit.
    rows = (t for account in sorted(accounts) for t in sorted(by_account[account], key=lambda t: t.time))
    model = fit(rows, settings, progress)
    return FittedFile(model, accounts, len(by_account) - len(normal), len(normal) - len(accounts), refused)
