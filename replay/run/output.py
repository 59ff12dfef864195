"""Output files of a replay: ``alerts.jsonl``, ``dead_letters.jsonl`` and ``scores.parquet`` in one folder."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from replay.state.batch_output import BatchOutput, alert_line
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import replacing
from stream_ccsd.records import score_schema

# Rows of a Parquet row group: the same whatever the batches were, so that the file is the same to the byte.
_GROUP = 65_536
_MANY_BATCHES = 256


class OutputFiles:
    """Writes batch output as it comes; ``scores.parquet`` appears when all is closed.

    Live, lines appear at once. Otherwise the files keep their old content until the new one is whole.
    """

    def __init__(self, folder: Path, model: str, live: bool = True) -> None:
        self.folder = folder
        self._schema = score_schema().with_metadata({"model": model})
        self._places = ExitStack()  # where files that are not whole yet wait for that
        self._open = ExitStack()
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        with self._explained():
            folder.mkdir(parents=True, exist_ok=True)
            self._alerts = self._text("alerts.jsonl", live)
            self._dead = self._text("dead_letters.jsonl", live)
            sink = self._open.enter_context(_Sink(self._place("scores.parquet")))
            self._scores = self._open.enter_context(pq.ParquetWriter(sink, self._schema, compression="zstd"))

    def add(self, batch_output: BatchOutput) -> None:
        """Write what a batch brought."""
        self.add_lines(
            [alert_line(position, alert) for position, alert in batch_output.alerts],
            [letter.to_json() for letter in batch_output.dead_letters],
        )
        self.add_scores(batch_output.scores)

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
            self._waiting = pa.Table.from_batches(self._waiting, self._schema).combine_chunks().to_batches()
        while self._rows >= _GROUP:
            table = pa.Table.from_batches(self._waiting, self._schema)
            self._write(table.slice(0, _GROUP))
            self._waiting = table.slice(_GROUP).to_batches()
            self._rows -= _GROUP

    def close(self) -> None:
        """Complete all files."""
        if self._rows:
            self._write(pa.Table.from_batches(self._waiting, self._schema))
        self._waiting, self._rows = [], 0
        with self._explained():
            self._open.close()
            self._places.close()

    def __enter__(self) -> OutputFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._give_up(error)

    def _place(self, name: str) -> Path:
        return self._places.enter_context(replacing(self.folder / name))

    def _text(self, name: str, live: bool) -> IO[str]:
        place = self.folder / name if live else self._place(name)
        return self._open.enter_context(place.open("w", encoding="utf-8", newline="\n"))

    def _write(self, table: pa.Table) -> None:
        table = table.combine_chunks().replace_schema_metadata(self._schema.metadata)
        with self._explained():
            self._scores.write_table(table, row_group_size=_GROUP)

    def _give_up(self, error: BaseException) -> None:
        """What is not whole goes; the error at hand is the one to report, and nothing is left to close."""
        self._waiting, self._rows = [], 0
        with suppress(OSError, ValueError, pa.ArrowException):
            self._open.close()
        with suppress(type(error), StreamCcsdError):
            self._places.__exit__(type(error), error, error.__traceback__)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StreamCcsdError as error:
            self._give_up(error)
            raise
        except (OSError, ValueError) as error:  # the latter of a name with a zero byte
            self._give_up(error)
            reason = getattr(error, "strerror", None) or error
            raise StreamCcsdError(
                f"cannot write to {self.folder}: {reason}. Make room, or name another --out"
            ) from error


class _Sink(io.RawIOBase):
    """A file to write that knows how far it is: Arrow asks, and a pipe cannot tell."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written += self._file.write(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def close(self) -> None:
        self._file.close()
        super().close()
