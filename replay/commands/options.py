"""Options that several commands of a replay share, and what they mean: budgets, times, fields, learning."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stream_ccsd.calendar import Calendar, CalendarError, parse_moment
from stream_ccsd.cli.command import given_flags
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.learning.schedule import OFTEN

if TYPE_CHECKING:
    from replay.run.learning import Learning
    from stream_ccsd.model.model import Model


def _known_encoding(name: str | None) -> str | None:
    try:
        if name is not None:
            codecs.lookup(name)
    except (LookupError, ValueError) as error:
        raise typer.BadParameter(f"no text encoding is called {name!r}; utf-8 and latin-1 are") from error
    return name


EncodingOption = Annotated[
    str | None,
    typer.Option(
        help="Text encoding of the file; by default UTF-8, or what its byte order mark says.", callback=_known_encoding
    ),
]
SettingsOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of the engine, like alert_rate=1e-4.")
]
AlertRateOption = Annotated[
    float | None,
    typer.Option(metavar="RATE", help="Alert budget as a share of the transactions: 0.001 is one in 1,000."),
]
AlertsPerDayOption = Annotated[
    float | None,
    typer.Option(
        metavar="N", help="Alert budget a day, at as many transactions a day as in the data the model was fitted on."
    ),
]
ExploreOption = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        min=0,
        max=1,
        help="Share of the alert budget that goes, besides, to transactions drawn at random, whatever they score: "
        "verdicts on alerts alone never tell of fraud that looks like nothing. By default the model's.",
    ),
]
OptionalStateOption = Annotated[Path | None, typer.Option("--state", metavar="FILE", help="State file of a replay.")]
StateOption = Annotated[Path, typer.Option("--state", metavar="FILE", help="State file of a replay.")]


def chosen_settings(given: list[str] | None, fields: Sequence[Any] = (), **others: Any) -> Any:
    """The engine's settings, with those given as NAME=VALUE, and declared fields; ``others`` are other defaults."""
    import json
    from dataclasses import replace

    from stream_ccsd.settings import Settings

    values: dict[str, Any] = {k: v for k, v in others.items() if v is not None}
    for part in given or []:
        name, mark, text = part.partition("=")
        if not mark:
            raise typer.BadParameter(f"expected NAME=VALUE, got {part!r}", param_hint="--set")
        try:
            values[name.strip()] = json.loads(text)
        except ValueError:
            values[name.strip()] = text
    settings = Settings.from_dict(values)
    return replace(settings, fields=(*settings.fields, *map(str, fields))) if fields else settings


def check_budget(options: Any) -> None:
    """At most one of the ways to say how many alerts there may be, and that one a number that can be."""
    from stream_ccsd.alerts.policy import checked_threshold

    names = [name for name in ("threshold", "alert_rate", "alerts_per_day") if getattr(options, name, None) is not None]
    if len(names) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in names)
        raise StreamCcsdError(f"{flags} say the same thing in two ways: give one of them")
    if options.alert_rate is not None and not 0 < options.alert_rate < 1:
        raise typer.BadParameter(
            f"expected a share above 0, below 1, got {options.alert_rate}", param_hint="--alert-rate"
        )
    if options.alerts_per_day is not None and not 0 < options.alerts_per_day < math.inf:
        raise typer.BadParameter(
            f"expected a number above 0, got {options.alerts_per_day}", param_hint="--alerts-per-day"
        )
    if "threshold" in names:
        checked_threshold(options.threshold)


def chosen_threshold(options: Any, model: Any) -> float | None:
    """The threshold of the budget that was asked for; None: the model's own."""
    from replay.run.fitting import rate_of
    from stream_ccsd.alerts.policy import threshold_by_budget

    if options.alert_rate is not None:
        return threshold_by_budget(options.alert_rate)
    if options.alerts_per_day is not None:
        return threshold_by_budget(rate_of(model, options.alerts_per_day))
    given: float | None = options.threshold
    return given


def number_or_date(text: str | None, option: str) -> float | datetime | None:
    """A time of the stream as a person gives it."""
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        try:
            return parse_moment(text)
        except CalendarError as error:
            raise typer.BadParameter(f"{error}; or the number of a time", param_hint=option) from error
    if not math.isfinite(number):
        raise typer.BadParameter(f"expected a finite number or a date, got {text!r}", param_hint=option)
    return number


def stream_time(text: str | None, option: str, calendar: Callable[[], Calendar]) -> float | None:
    """The same as the stream's own number; ``calendar`` is asked only for dates."""
    given = number_or_date(text, option)
    try:
        return calendar().time_of(given) if isinstance(given, datetime) else given
    except CalendarError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def file_calendar(source: Any, settings: Any) -> Calendar:
    """What the times of a file mean, before a model says so: from the settings, or from its first transactions."""
    from itertools import islice

    from stream_ccsd.transaction import Transaction

    times = (item.parsed.time for item in source.items() if isinstance(item.parsed, Transaction))
    return Calendar.choose(settings.time_unit, settings.time_origin, list(islice(times, 1000)))


def check_account(text: str | None, option: str = "--account") -> None:
    """Refuse an account, or another name, as no stream could have it: what is no text can only be a mistake."""
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise StreamCcsdError(
            f"{option} {text!r} is not UTF-8: no stream has {'an account' if option == '--account' else 'one'} of that "
            "name"
        ) from error


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
        from replay.sources.files import readable

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
    from replay.run.learning import Learning

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
    from replay.cases.verdicts import read_verdicts
    from stream_ccsd.files import WriteError, write_whole
    from stream_ccsd.transaction import Refusal

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
