"""STAND-IN until merged."""

from __future__ import annotations
from dataclasses import dataclass
from collections.abc import Iterable
from typing import Literal


@dataclass(frozen=True, slots=True)
class Verdict:
    transaction: str
    account: str
    verdict: str
    who: str
    time: float
    why: str = ""
    source: str = "investigator"


@dataclass(frozen=True)
class Standing:
    label: str | None
    disputed: bool


def standing(verdicts: Iterable[Verdict]) -> Standing:
    vs = list(verdicts)
    v = vs[-1]
    return Standing(v.verdict if v.verdict != "unsure" else None, False)
