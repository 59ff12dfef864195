"""Output files of a replay: ``alerts.jsonl``, ``dead_letters.jsonl`` and ``scores.parquet`` in one folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
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
_MANY_BATCHES = 256


def alert_line(position: int, alert: Alert) -> str:
    """One line of ``alerts.jsonl``."""
    return json.dumps({"position": position, "headline": alert.headline, **alert.to_dict()})


class OutputFiles:
    """Writes harvests as they come; ``scores.parquet`` appears when all is closed.

    Live, lines appear at once. Otherwise the files keep their old content until the new one is whole.
    """

    def __init__(self, folder: Path, model: str, live: bool = True) -> None:
        self.folder = folder
        self._final = {name: folder / name for name in ("alerts.jsonl", "dead_letters.jsonl", "scores.parquet")}
        self._written = {
            name: path if live and name != "scores.parquet" else folder / f"{name}.tmp"
            for name, path in self._final.items()
        }
        self._schema = SCORES.with_metadata({"model": model})
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
            self._alerts = _text(self._written["alerts.jsonl"])
            self._dead = _text(self._written["dead_letters.jsonl"])
            self._scores = pq.ParquetWriter(self._written["scores.parquet"], self._schema, compression="zstd")
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
        with self._explained():
            for file, lines in ((self._alerts, alerts), (self._dead, dead_letters)):
                if lines:
                    file.write("".join(line + "\n" for line in lines))
                    file.flush()

    def add_scores(self, scores: pa.RecordBatch) -> None:
        """Scores, gathered into row groups of equal size."""
        self._waiting.append(scores)
        self._rows += scores.num_rows
        if len(self._waiting) >= _MANY_BATCHES:  # small batches take more room than their rows
            self._waiting = pa.Table.from_batches(self._waiting, SCORES).combine_chunks().to_batches()
        while self._rows >= _GROUP:
            table = pa.Table.from_batches(self._waiting, SCORES)
            self._write(table.slice(0, _GROUP))
            self._waiting = table.slice(_GROUP).to_batches()
            self._rows -= _GROUP

    def close(self) -> None:
        """Complete all files."""
        with self._explained():
            if self._rows:
                self._write(pa.Table.from_batches(self._waiting, SCORES))
            self._waiting, self._rows = [], 0
            for file in (self._scores, self._alerts, self._dead):
                file.close()
            for name, path in self._final.items():
                if self._written[name] != path:
                    self._written[name].replace(path)

    def __enter__(self) -> OutputFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._remove()

    def _write(self, table: pa.Table) -> None:
        table = table.combine_chunks().replace_schema_metadata(self._schema.metadata)
        with self._explained():
            self._scores.write_table(table, row_group_size=_GROUP)

    def _remove(self) -> None:
        for name, path in self._written.items():
            if path != self._final[name] and path.exists():
                path.unlink()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._remove()
            raise StreamCcsdError(
                f"cannot write to {self.folder}: {error.strerror or error}. Make room, or name another --out"
            ) from error


def _text(path: Path) -> IO[str]:
    return path.open("w", encoding="utf-8", newline="\n")
