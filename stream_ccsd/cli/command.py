"""Commands whose options are the fields of a dataclass: each is declared once, and they arrive as one object.

The options for declared fields and for the mapping of columns are here too, because several packages' commands take
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand


@dataclass(frozen=True)
class Flags:
    """Annotates a parameter that gets a dict of those settings of a dataclass that were given as flags.

    For settings that may also come from elsewhere: a flag that was not given leaves them as they are.
    """

    settings: type


def with_options(function: Callable[..., None]) -> Callable[..., None]:
    """The function as a Typer command: a parameter that is a dataclass becomes one option a field.

    A field is declared as Typer has it, ``days: Annotated[int, typer.Option(help="How long.")] = 120``.
    """
    options: list[Parameter] = []
    makers: dict[str, tuple[Callable[..., Any], list[str]]] = {}
    for parameter in signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        flags = next((note for note in getattr(kind, "__metadata__", ()) if isinstance(note, Flags)), None)
        if flags is not None:
            made = [_flag(option) for option in _options(flags.settings)]
        elif is_dataclass(kind):
            made = _options(kind)
        else:
            options.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        options += made
        makers[parameter.name] = _given if flags else kind, [option.name for option in made]

    @wraps(function)
    def run(**values: Any) -> None:
        for name, (maker, names) in makers.items():
            values[name] = maker(**{option: values.pop(option) for option in names})
        function(**values)

    run.__signature__ = Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run


def given_flags(options: Any, names: Iterable[str]) -> list[str]:
    """Of these fields, the flags of those that are not at their default."""
    made = {option.name: option for option in _options(type(options))}
    flags = []
    for name in names:
        if getattr(options, name) != made[name].default:
            declared = made[name].annotation.__metadata__[0].default  # where Typer keeps a flag that has another name
            flags.append(declared if isinstance(declared, str) else f"--{name.replace('_', '-')}")
    return flags


class SectionedCommand(TyperCommand):
    """A command whose help groups options under the panels they name, as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options, those without a panel first."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(option, "rich_help_panel", None) or "Options", []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _options(kind: Any) -> list[Parameter]:
    """A dataclass's fields as parameters."""
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]


def _flag(option: Parameter) -> Parameter:
    """The option of a setting: None if it is not given, with its default in the help."""
    kind, declared = get_args(option.annotation)
    inner = next((part for part in get_args(kind) if get_origin(part) is Literal), kind)
    declared = copy(declared)
    declared.show_default = False
    if get_origin(inner) is Literal:  # one of these words; settings are checked where they come together
        kind = str
        declared.metavar = "|".join(get_args(inner))
    if option.default is not None and option.default != "":
        default = {True: "yes", False: "no"}[option.default] if isinstance(option.default, bool) else option.default
        declared.help = f"{declared.help} [default: {default}]"
    return option.replace(annotation=Annotated[kind | None, declared], default=None)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


ColumnsOption = Annotated[
    str,
    typer.Option(
        metavar="MAP",
        help="Column mapping like account=user,time=when,category=none,id=none; by default guessed. Declared fields "
        "are renamed in the same way.",
    ),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME:KIND",
        help="Look at this column, too: country:category, distance:number. Again for each further one.",
    ),
]

_OWN = ("account", "time", "amount", "category", "merchant", "id")


def declared_fields(given: Sequence[str] | None) -> Any:
    """The fields that ``--field`` declares, in the order of their names."""
    from stream_ccsd.fields import FieldError, declared

    try:
        return declared(given or ())
    except FieldError as error:
        raise typer.BadParameter(str(error), param_hint="--field") from error


def columns_schema(columns: str, fields: Sequence[Any] = (), others: Sequence[Any] = ()) -> Any:
    """The schema that ``--columns`` describes, with declared fields; None, or a guess with those fields, to guess.

    ``others`` are fields that may be renamed there, too, and are not read by this schema.
    """
    from stream_ccsd.transaction import Guess, Schema

    try:
        pairs = dict(part.split("=", 1) for part in columns.split(",")) if columns else {}
    except ValueError as error:
        raise typer.BadParameter(f"expected field=column pairs, got {columns!r}", param_hint="--columns") from error
    names = [field.name for field in fields]
    others = [field.name for field in others if field.name not in names]
    unknown = set(pairs) - {*_OWN, *names, *others}
    if unknown:
        known = ", ".join(dict.fromkeys((*_OWN, *names, *others)))
        raise typer.BadParameter(
            f"unknown field {', '.join(sorted(unknown))}: there are {known}", param_hint="--columns"
        )
    renamed = {name: pairs.pop(name) for name in names if name in pairs}
    pairs = {name: column for name, column in pairs.items() if name not in others}
    if not pairs:
        return Guess(tuple(fields), renamed) if fields else None
    mapped: dict[str, Any] = {k: None if v == "none" and k in ("category", "id") else v for k, v in pairs.items()}
    return Schema(**mapped, fields=tuple(fields), renamed=renamed)
