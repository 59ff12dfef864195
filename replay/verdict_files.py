"""Files of verdicts: CSV and JSON lines (plain, .gz, .xz) and Parquet, row by row, each a verdict or refused."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from replay.files import Reading, Row, listed
from stream_ccsd.calendar import Calendar
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.transaction import Refusal
from stream_ccsd.verdict import NEEDED, Verdict


def read_verdicts(
    path: Path,
    calendar: Calendar | None = None,
    given: Mapping[str, Any] | None = None,
    encoding: str | None = None,
    latest: float = math.inf,
) -> Iterator[tuple[Row, Verdict | Refusal]]:
    """Every row of a file in its order, with the verdict in it or the refusal that says what is wrong.

    Columns are named as the fields of a verdict; ``given`` says what stands for those that a row leaves out. Dates
    are understood by the calendar, and none may be beyond the ``latest`` that the stream's model takes.

    Raises
    ------
    StreamCcsdError
        If the file cannot be read, has no known format, or is a table that lacks a column.
    """
    given = dict(given or {})
    for row in Reading(path, encoding, "verdict").rows():
        if row.values is None:
            yield row, row.refusal()
            continue
        missing = [name for name in NEEDED if name not in row.values and name not in given]
        if missing and row.is_table:
            raise StreamCcsdError(
                f"{path} has no column named {listed(missing)}: it has {listed(row.values)}. A file of verdicts has "
                f"{', '.join(NEEDED)}, and may have why and source"
            )
        said = {name: value for name, value in row.values.items() if name not in given or value not in (None, "")}
        yield row, Verdict.parse({**given, **said}, calendar, row.line, latest)
