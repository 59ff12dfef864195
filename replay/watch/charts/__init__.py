"""The page's pictures: SVG from plain numbers, colours by class (static/page.css), every text escaped.

Templates know this package as ``charts``.
"""

from replay.watch.charts.evidence import contributions, densities, hours, law, merchants, reasons
from replay.watch.charts.flow import histogram, minutes, over_time
from replay.watch.charts.timeline import timeline, windows
from replay.watch.charts.tuning import budget, quality, weeks

__all__ = [
    "budget",
    "contributions",
    "densities",
    "histogram",
    "hours",
    "law",
    "merchants",
    "minutes",
    "over_time",
    "quality",
    "reasons",
    "timeline",
    "weeks",
    "windows",
]
