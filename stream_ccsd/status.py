"""What becomes of a record: one name for each fate, the same in results, dead letters, messages and counts.

Programs decide by these names. The reasons beside them are for people: they quote what came from outside, so nothing
may be decided by their words.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The fate of one record; only the first two have an effect on an account.

    >>> Status("too late"), Status.LATE.entered, Status.DUPLICATE.entered
    (<Status.TOO_LATE: 'too late'>, True, False)
    """

    SCORED = "scored"
    LATE = "late"
    DUPLICATE = "duplicate"
    TOO_LATE = "too late"
    TOO_FAR_AHEAD = "too far ahead"
    REFUSED = "refused"  # made by hand, and no transaction
    DAMAGED = "damaged state"  # a good transaction of an account whose stored state cannot be read
    MALFORMED = "malformed"  # not a transaction by the schema
    KEY = "key"  # a message under another key than its account
    FAILED = "internal error"  # a fault of this software

    @property
    def entered(self) -> bool:
        """Whether the account remembers it."""
        return self in (Status.SCORED, Status.LATE)
