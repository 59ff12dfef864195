"""``stream-ccsd evaluate``: does it reproduce the paper, and would it work on a stream?"""

from __future__ import annotations

import typer

from offline.commands.clustering import clustering
from offline.commands.fraud import fraud
from offline.commands.simulated import drift, rates

app = typer.Typer(help="Evaluate on labelled data, with the engine's own core.", no_args_is_help=True)
app.command()(clustering)
app.command()(drift)
app.command()(fraud)
app.command()(rates)
