"""A rate and what raised an alert, in few words."""

from __future__ import annotations

# The score that raised an alert, or the largest term of its evidence; what is not here is called as it is.
_WHY = {
    "amount_own": "more than usual",
    "category": "rare category",
    "merchant": "rare merchant",
    "place_own": "new place",
    "hour_own": "own hours",
    "count_hour": "many an hour",
    "count_day": "many a day",
}


def why_words(why: str) -> str:
    """What an alert is mostly for.

    >>> why_words("place_own"), why_words("device_own"), why_words("takeover")
    ('new place', 'new device', 'takeover')
    """
    return _WHY.get(why) or (f"new {why.removesuffix('_own')}" if why.endswith("_own") else why)


def per_thousand(rate: float) -> str:
    """A rate for people.

    >>> per_thousand(0.001), per_thousand(0.00123), per_thousand(0.02), per_thousand(1e-5)
    ('1 in 1,000', '1.2 in 1,000', '20 in 1,000', '0.01 in 1,000')
    """
    return f"{float(f'{1000 * rate:.2g}'):,.4g} in 1,000"
