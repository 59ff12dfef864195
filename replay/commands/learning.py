"""What ``stream-ccsd replay`` is told about lessons, and what that means for a stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_ccsd.calendar import Calendar, CalendarError
from stream_ccsd.cli.command import given_flags
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.lessons.schedule import OFTEN

if TYPE_CHECKING:
    from replay.lessons import Learning
    from stream_ccsd.library.model import Model

DEAD_VERDICTS = "verdict_dead_letters.jsonl"
LearnOption = Annotated[
    str | None,
    typer.Option(
        metavar="EVERY",
        help="Learn from verdicts: a lesson hourly, daily, weekly, or each 6h, 12 (units of the stream's time).",
    ),
]
DelayOption = Annotated[
    str, typer.Option(help="How long after a transaction silence about it counts as normal: 7d, 36h, 12.")
]
VerdictsFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Labels of the file (or 'fraud' of the simulated town) become verdicts when the delay has passed: to see "
        "what learning would have brought.",
    ),
]
VerdictsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Verdicts to learn from, each when its time has come (see 'verdict')."),
]
AdaptOption = Annotated[
    bool,
    typer.Option("--adapt", help="Laws of normal transactions follow the stream, slowly: prices, merchants, hours."),
]


def check_learning(options: Any) -> None:
    """Options that would be ignored, or leave nothing to learn from."""
    if options.learn is None and not options.adapt:
        given = given_flags(options, ("verdicts_from", "verdicts", "delay"))
        if given:
            raise StreamCcsdError(f"{', '.join(given)} is for lessons: say when they are, with --learn daily")
    elif not options.adapt and not (options.verdicts_from or options.verdicts or options.state):
        raise StreamCcsdError(
            "--learn has no verdicts to learn from: name a column with --verdicts-from, a file with --verdicts, or "
            "keep a --state, beside which 'stream-ccsd verdict' records them"
        )
    if options.verdicts_from is not None:
        _check_column(options)
    if options.verdicts is not None:
        from replay.files import readable

        with readable(options.verdicts):  # said at once
            pass


def _check_column(options: Any) -> None:
    """A stream has one column of labels."""
    if options.data is None and options.verdicts_from != "fraud":
        raise StreamCcsdError(f"a simulated town has its labels in 'fraud', not in {options.verdicts_from!r}")
    if options.label not in (None, options.verdicts_from):
        raise StreamCcsdError(
            f"--label {options.label} and --verdicts-from {options.verdicts_from} are two columns: what is learnt from "
            "is also what is counted against, so name one"
        )


def chosen_learning(options: Any, model: Model) -> tuple[Learning | None, int]:
    """How the replay learns, and how many rows of the file of verdicts were none: those are in the outputs."""
    from replay.lessons import Learning

    if options.learn is None and not options.adapt:
        return None, 0
    calendar = model.calendar
    often = "daily" if options.learn is None else options.learn
    every = _length(calendar, "--learn", OFTEN.get(often, often))
    verdicts, refused = _read(options, model) if options.verdicts is not None else ([], 0)
    labels = options.verdicts_from is not None
    delay = _length(calendar, "--delay", options.delay)
    learning = Learning(every, delay, labels, tuple(verdicts), options.adapt)
    learning.schedule.check(model)  # what cannot be is said before there is work
    return learning, refused


def _length(calendar: Calendar, flag: str, text: str) -> float:
    try:
        return calendar.duration(text)
    except CalendarError as error:
        raise StreamCcsdError(f"{flag}: {error}") from error


def _read(options: Any, model: Model) -> tuple[list[Any], int]:
    from replay.verdict_files import read_verdicts
    from stream_ccsd.transaction import Refusal
    from stream_ccsd.writing import WriteError, write_whole

    assert options.verdicts is not None
    good, bad = [], []
    for row, parsed in read_verdicts(options.verdicts, model.calendar, latest=model.latest_time):
        if isinstance(parsed, Refusal):
            bad.append({"line": row.line, "reason": parsed.reason, "field": parsed.field, "raw": row.raw})
        else:
            good.append(parsed)
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteError(options.out, error) from error
    write_whole(options.out / DEAD_VERDICTS, "".join(json.dumps(line) + "\n" for line in bad))
    return good, len(bad)
