"""Output files of a replay: ``alerts.jsonl``, ``dead_letters.jsonl`` and ``scores.parquet`` in one folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from replay.harvest import SCORES, Harvest
from stream_ccsd.alert.reasons import Alert
from stream_ccsd.errors import StreamCcsdError

# Rows of a Parquet row group: the same whatever the batches were, so that the file is the same to the byte.
_GROUP = 65_536


def alert_line(position: int, alert: Alert) -> str:
    """One line of ``alerts.jsonl``."""
    return json.dumps({"position": position, "headline": alert.headline, **alert.to_dict()})


class OutputFiles:
    """Writes harvests as they come. Lines appear at once; ``scores.parquet`` is complete when closed.

    Used as a context: left by an error, the scores so far are still made readable.
    """

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._alerts = _text(folder / "alerts.jsonl")
            self._dead = _text(folder / "dead_letters.jsonl")
            self._temporary = folder / f"scores.parquet.{os.getpid()}.tmp"
            schema = SCORES.with_metadata({"model": model})
            self._scores = pq.ParquetWriter(self._temporary, schema, compression="zstd")
        except OSError as error:
            raise StreamCcsdError(
                f"cannot write to {folder}: {error.strerror}; name another folder with --out"
            ) from error
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, harvest: Harvest) -> None:
        """Write what a batch brought."""
        self.add_lines(
            [alert_line(position, alert) for position, alert in harvest.alerts],
            [letter.to_json() for letter in harvest.dead_letters],
        )
        self.add_scores(harvest.scores)

    def add_lines(self, alerts: list[str], dead_letters: list[str]) -> None:
        """Lines that are already JSON."""
        for file, lines in ((self._alerts, alerts), (self._dead, dead_letters)):
            if lines:
                file.write("".join(line + "\n" for line in lines))
                file.flush()

    def add_scores(self, scores: pa.RecordBatch) -> None:
        """Scores, gathered into row groups of equal size."""
        self._waiting.append(scores)
        self._rows += scores.num_rows
        while self._rows >= _GROUP:
            table = pa.Table.from_batches(self._waiting, SCORES)
            self._write(table.slice(0, _GROUP))
            self._waiting = table.slice(_GROUP).to_batches()
            self._rows -= _GROUP

    def close(self) -> None:
        """Complete all files."""
        if self._rows:
            self._write(pa.Table.from_batches(self._waiting, SCORES))
        self._waiting, self._rows = [], 0
        self._scores.close()
        self._temporary.replace(self.folder / "scores.parquet")
        self._alerts.close()
        self._dead.close()

    def __enter__(self) -> OutputFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, table: pa.Table) -> None:
        table = table.combine_chunks().replace_schema_metadata(self._schema.metadata)
        self._scores.write_table(table, row_group_size=_GROUP)


def _text(path: Path) -> IO[str]:
    return path.open("w", encoding="utf-8", newline="\n")
