"""Every number of the method, in one frozen object. Defaults are the paper's values where the paper has one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from stream_ccsd.calendar import UNITS, CalendarError, Unit, parse_moment
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fields import Field, FieldError, declared
from stream_ccsd.scores import COMPILED, FUSED

Standardisation = Literal["causal", "history"]


# Beyond 2**53 neighbouring whole numbers are not distinct. The other bounds are where formulas lose their meaning
# or their digits, not where values become unwise.
_FAR = 2.0**53
_WHOLE = {
    "window": (2, 512),
    "local_history": (1, 4096),
    "library_stride": (1, 1_000_000),
    "neighbours": (1, 1_000_000),
    "alert_cap": (0, 2**53),
    "folds": (2, 100),
    "seed": (0, 2**63 - 1),
}
_NUMBERS = {
    "sigma_x": (1e-6, 1e6),
    "sigma_y": (1e-6, 1e6),
    "half_life": (1e-3, 1e9),
    "sigma_u": (1e-3, 1e1),
    "category_strength": (1e-9, 1e12),
    "merchant_strength": (1e-9, 1e12),
    "place_strength": (1e-9, 1e12),
    "own_place_strength": (1e-9, 1e12),
    "own_hour_strength": (1e-9, 1e12),
    "usual_strength": (1e-9, 1e12),
    "usual_share": (0.0, 1.0),
    "departure": (1e-9, 1.0 - 1e-9),
    "settled": (0.0, 1e9),
    "amount_departure": (1e-9, 1.0 - 1e-9),
    "evidence_floor": (1e-12, 1.0),
    "takeover_cap": (1e-6, 1e3),
    "takeover_drift": (0.0, 1e3),
    "takeover_share": (0.0, 1.0 - 1e-9),
    "contamination": (0.0, 0.5),
    "explore": (0.0, 1.0),
    "rarity_alpha": (0.0, 1e12),
    "rarity_beta": (0.0, 100.0),
    "rho_category": (1e-9, 1e9),
    "rho_merchant": (1e-9, 1e9),
    "eta_category": (1e-9, 1e9),
    "eta_merchant": (1e-9, 1e9),
    "gate_category": (1e-9, 1.0),
    "gate_merchant": (1e-9, 1.0),
    "holdout": (1e-9, 1.0 - 1e-9),
    "tail_share": (1e-9, 1.0 - 1e-9),
    "alert_rate": (1e-300, 1.0 - 1e-9),
    "alert_margin": (0.0, _FAR),
    "alert_cooldown": (0.0, _FAR),
    "alert_interval": (1e-9, _FAR),
    "grace": (0.0, _FAR),
    "horizon": (0.0, _FAR),
}
_OPTIONAL = (
    *("sigma_x", "sigma_y", "sigma_u", "category_strength", "merchant_strength", "place_strength"),
    *("own_place_strength", "own_hour_strength", "usual_strength", "usual_share", "takeover_share", "horizon"),
)


class SettingsError(StreamCcsdError):
    """A setting is out of its range or unknown."""


@dataclass(frozen=True)
class Settings:
    """Settings of fit and engine; a model carries those it was fitted with."""

    # Windows (paper, Sec. 4.2)
    window: int = 50
    """K: transactions in a window."""
    local_history: int = 120
    """L: earlier windows of the same account that form the local density."""
    library_stride: int = 15
    """Distance of neighbouring library windows of one account."""
    standardise: Standardisation = "causal"
    """Mean and deviation of an account's amounts: up to each moment, or (paper, offline) over its whole history."""

    # Divergence score (paper, Sec. 4.2)
    divergence: bool = True
    """Whether to compute the divergence score at all."""
    neighbours: int = 600
    """J: library windows that form the global density around a query."""
    sigma_x: float | None = None
    """Bandwidth of the Gaussian on windows; None: median distance of library windows (paper 9.649)."""
    sigma_y: float | None = None
    """Bandwidth of the Gaussian on abs(Δz); None: median absolute difference of signed Δz (paper 1.016)."""
    rarity: bool = True
    """Whether rare (category, merchant) pairs of the library have more weight."""
    rarity_alpha: float = 10.0
    """In the prior (f + alpha) ** -beta, f the library windows that end with the same pair."""
    rarity_beta: float = 0.5
    """In the same prior."""
    attenuation: bool = True
    """Whether windows that end in another category or at another merchant have less weight."""
    rho_category: float = 0.25
    """Factor for another category."""
    rho_merchant: float = 0.25
    """Factor for another merchant."""
    decay: bool = True
    """Whether recent local windows have more weight."""
    half_life: float = 48.0
    """Transactions after which a local window counts for half; also in the account's own densities."""
    boosts: bool = True
    """Whether local windows whose change flags match the query's have more weight."""
    eta_category: float = 1.7
    """Factor for a matching category change flag."""
    eta_merchant: float = 1.7
    """Factor for a matching merchant change flag."""
    gates: bool = True
    """Whether outputs whose change flags differ are less alike."""
    gate_category: float = 0.6
    """Factor for differing category change flags."""
    gate_merchant: float = 0.6
    """Factor for differing merchant change flags."""

    # Evidence and takeover (beyond the paper). None: the value under which left-out normal accounts are most likely.
    fields: tuple[str, ...] = ()
    """Further fields of a transaction, each as NAME:KIND, the kind category or number."""
    sigma_u: float | None = None
    """Bandwidth of the Gaussian on log(1 + amount)."""
    category_strength: float | None = None
    """Transactions that all amounts together count for against those of a category."""
    merchant_strength: float | None = None
    """Transactions that a category's amounts count for against those of a merchant in it."""
    place_strength: float | None = None
    """Transactions that equal shares of all merchants count for against a merchant's own, within its category."""
    own_place_strength: float | None = None
    """Transactions that everyone's places count for against the account's own."""
    own_hour_strength: float | None = None
    """Transactions that everyone's hours count for against the account's own."""
    usual_strength: float | None = None
    """Transactions that no difference counts for against the account's usual difference in amounts."""
    usual_share: float | None = None
    """How far amounts follow the account's usual ones (1) rather than those of the place (0)."""
    departure: float = 0.01
    """Share of frauds taken to differ, from everyone or from their account, in a field other than amount and place."""
    amount_departure: float = 0.5
    """Share of frauds taken to differ in their amount from what the account usually pays."""
    settled: float = 15.0
    """Decayed visits to a place that may be somebody else's; what goes beyond them is a habit, and no evidence."""
    evidence_floor: float = 1e-4
    """Density of a number that was never seen: caps its evidence."""
    takeover_cap: float = 5.0
    """Most nats that one transaction adds to the takeover score."""
    takeover_drift: float = 0.3
    """Nats that every transaction takes off it."""
    takeover_share: float | None = None
    """Share of the alert budget for takeover; None: up to a fifth, the more an account's past explains."""
    contamination: float = 0.0
    """Share of the fitted transactions that may be fraud: so many, the oddest ones, hardly count."""

    # Tail rates
    folds: int = 5
    """Parts of the normal accounts; each is calibrated by densities that were fitted without it."""
    holdout: float = 0.15
    """Share of the normal accounts kept out of the library of windows, to rate the divergence score on."""
    tail_share: float = 0.01
    """Share of the highest held-out scores that a generalised Pareto tail is fitted to."""
    seed: int = 0
    """Of the held-out choice and of sampled bandwidths."""

    # Alerts
    alert_on: str = FUSED
    """Which score the account maximum is taken of; fused is the rarer of evidence and takeover."""
    alert_rate: float = 1e-3
    """Alert budget: the share of normal transactions allowed to reach the threshold, where none is given."""
    alert_margin: float = 1.0
    """A second alert of an account needs a score higher than its last alert's by this (nats of rarity)."""
    alert_cooldown: float = 0.0
    """Time after an alert in which the account is not alerted again (in the unit of the transactions' time)."""
    explore: float = 0.0
    """Further share of the alert budget, for transactions drawn at random: verdicts on alerts alone never find fraud
    that looks normal."""
    alert_cap: int = 0
    """At most this many alerts of all accounts per interval; 0: no cap."""
    alert_interval: float = 1.0
    """That interval, in the unit of the transactions' time."""

    # Order of events
    grace: float = 0.0
    """How far an event may lie behind its account's newest and still be processed, marked as late."""
    horizon: float | None = None
    """How far an event may lie ahead of the newest fitted on; None: ten years, or a thousand times their span."""

    # What people are shown
    time_unit: Unit | None = None
    """Of the transactions' time: seconds, milliseconds, days or number; None: recognised when a model is fitted."""
    time_origin: str | None = None
    """The moment of time 0, in ISO 8601; None: 1970 where times are (milli)seconds since then, else unknown."""

    def __post_init__(self) -> None:
        for name, (low, high) in _WHOLE.items():
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
            _require(whole, name, value, f"a whole number from {low} to {high}")
        for name, (least, most) in _NUMBERS.items():
            value = getattr(self, name)
            optional = name in _OPTIONAL
            number = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
            wanted = f"a number from {least:g} to {most:g}" + (", or None" if optional else "")
            _require(number or (optional and value is None), name, value, wanted)
        for name in ("divergence", "rarity", "attenuation", "decay", "boosts", "gates"):
            _require(isinstance(getattr(self, name), bool), name, getattr(self, name), "true or false")
        alerts = (FUSED, *(score.name for score in COMPILED))
        for name, known in (("standardise", get_args(Standardisation)), ("alert_on", alerts)):
            _require(getattr(self, name) in known, name, getattr(self, name), f"one of {', '.join(known)}")
        _require(
            self.divergence or self.alert_on != "divergence", "alert_on", self.alert_on, "a score that is switched on"
        )

        try:
            object.__setattr__(self, "fields", tuple(str(field) for field in declared(self.fields)))
        except FieldError as error:
            raise SettingsError(f"fields: {error}") from error
        _require(self.time_unit in (None, *UNITS), "time_unit", self.time_unit, f"one of {', '.join(UNITS)}, or None")
        if self.time_origin is not None:
            named = self.time_unit not in (None, "number")
            _require(named, "time_unit", self.time_unit, "seconds, milliseconds or days where there is a time_origin")
            try:
                parse_moment(self.time_origin)
            except CalendarError as error:
                raise SettingsError(f"time_origin: {error}") from error

    @property
    def declared(self) -> tuple[Field, ...]:
        """The declared fields, in the order of their names."""
        return declared(self.fields)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "fields": list(self.fields)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """The inverse; an unknown name is an error, since it may be a misspelt one."""
        if not isinstance(values, dict):
            raise SettingsError(f"settings are names with values, got {values!r}")
        unknown = {str(name) for name in values} - {f.name for f in fields(cls)}
        if unknown:
            raise SettingsError(f"unknown setting: {', '.join(sorted(unknown))}")
        return cls(**values)


def _require(condition: bool, name: str, value: object, expected: str) -> None:
    if not condition:
        raise SettingsError(f"{name} is {value!r}, expected {expected}")
