"""Declared fields: what a transaction says besides account, time, amount, category, merchant and id.

A field is a ``category`` (a name: country, device, channel) or a ``number`` (distance, age of the account). A value may
be missing, which is a value of its own. Fields are declared once, for a fit; the model carries them to wherever it
scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.scores import TAKEN

Kind = Literal["category", "number"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FieldValue = str | float | None

MAX_FIELDS = 32
"""Declared fields; each costs an account memory."""


TERMS = (
    *("amount", "amount_own", "category", "merchant", "place_own", "habit"),
    *("hour", "hour_own", "weekday", "gap", "count_hour", "count_day"),
)
"""Terms of the evidence that every transaction has (``evidence.terms``); terms of declared fields follow."""

OWN = "_own"
"""Suffix of the terms that compare with the account itself."""


class FieldError(StreamCcsdError):
    """A declaration that does not name a field and its kind."""


@dataclass(frozen=True, order=True)
class Field:
    """A declared field.

    >>> Field.parse("country:category"), str(Field("distance", "number"))
    (Field(name='country', kind='category'), 'distance:number')
    """

    name: str
    kind: Kind

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", self.name):
            raise FieldError(f"a field's name is a word of letters, digits and '_', got {self.name!r}")
        if self.name.casefold() in TAKEN or self.name in TERMS:
            raise FieldError(f"a field cannot be called {self.name!r}: something else is")
        if self.name.endswith(OWN):
            raise FieldError(f"a field's name cannot end in {OWN!r}, got {self.name!r}: a term of the evidence does")
        if self.kind not in KINDS:
            raise FieldError(f"the field {self.name!r} is of kind {self.kind!r}, expected one of {', '.join(KINDS)}")

    def __str__(self) -> str:
        return f"{self.name}:{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Field:
        """From ``name:kind``.

        Raises
        ------
        FieldError
            If it is something else.
        """
        name, colon, kind = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not colon:
            raise FieldError(f"a field is declared as NAME:KIND with KIND one of {', '.join(KINDS)}, got {text!r}")
        return cls(name, kind)  # type: ignore[arg-type]  # checked there


def declared(texts: Iterable[str]) -> tuple[Field, ...]:
    """Fields of declarations, in the order of their names: the order they were declared in changes nothing.

    >>> [field.name for field in declared(["distance:number", "country:category"])]
    ['country', 'distance']
    """
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise FieldError(f"fields are a list of NAME:KIND, got {texts!r}")
    fields = sorted(Field.parse(text) for text in texts)
    for one, other in pairwise(fields):
        if one.name == other.name:
            raise FieldError(f"the field {one.name!r} is declared twice")
    if len(fields) > MAX_FIELDS:
        raise FieldError(f"{len(fields)} fields are declared, at most {MAX_FIELDS} are possible")
    return tuple(fields)


def density_terms(fields: tuple[Field, ...]) -> tuple[str, ...]:
    """Terms of the evidence that come from densities: two for each declared category, one for each number."""
    names = [text for f in fields if f.kind == "category" for text in (f.name, f.name + OWN)]
    return (*TERMS, *names, *(f.name for f in fields if f.kind == "number"))
