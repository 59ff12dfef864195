"""Commands whose options are the fields of a dataclass: each is declared once, and they arrive as one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from typer.core import TyperCommand


@dataclass(frozen=True)
class Flags:
    """Annotates a parameter that gets a dict of those settings of a dataclass that were given as flags.

    For settings that may also come from elsewhere: a flag that was not given says nothing about them.
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
    """The option of a setting: None if it is not given, its default told in the help."""
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
