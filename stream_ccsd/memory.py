"""Whether there is room for what is about to be made: said before the work, not by whoever ends the process."""

from __future__ import annotations

import os

from stream_ccsd.errors import StreamCcsdError


def require_memory(size: int, what: str) -> None:
    """Refuse what would not fit into this machine's memory.

    Raises
    ------
    StreamCcsdError
        If it takes more than there is.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return
    if size > there:
        raise StreamCcsdError(
            f"{what} would take about {size / 2**30:,.0f} GiB of memory, and there are {there / 2**30:,.0f}: take fewer"
        )
