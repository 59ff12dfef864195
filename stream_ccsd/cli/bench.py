"""``stream-ccsd bench``: timings as ratios against a peer in the same run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from stream_ccsd.cli.output import DataRootOption, JsonOption, emit, plain_table, progress_bar

app = typer.Typer(help="Measure speed and memory against peers, in one run on this machine.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure speed and memory against peers, in one run on this machine."""


@app.command()
def pairwise(
    sizes: Annotated[str, typer.Option(help="Numbers of series, comma-separated.")] = "200,1000,4500",
    length: Annotated[int, typer.Option(help="Length of the generated series.", min=2)] = 140,
    seed: Annotated[int, typer.Option(help="Of the generated series.")] = 0,
    data: DataRootOption = None,
    json_target: JsonOption = None,
) -> None:
    """All-pairs divergence: the fast form against the direct double sum and DTW.

    The two slow forms are timed on a sample of pairs and scaled to all of them; the result says how many.
    Real ECG5000 series are measured too where the data folder is given.
    """
    from offline.bench.pairwise import measure_pairwise

    try:
        counts = [int(size) for size in sizes.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"expected numbers like 200,1000, got {sizes!r}", param_hint="--sizes") from error
    if min(counts) < 2:
        raise typer.BadParameter("each size must be at least 2", param_hint="--sizes")
    with progress_bar() as start:
        result = measure_pairwise(counts, length, seed, data, start("bench pairwise"))
    emit(result, json_target, _show_pairwise)


def _show_pairwise(console: Console, result: dict[str, Any]) -> None:
    table = plain_table(f"All pairs, {result['threads']} threads")
    for column in ("series", "data", "fast s", "direct s", "DTW s", "vs direct", "vs DTW", "MB", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in result["sizes"]:
        table.add_row(
            str(row["series"]),
            row["source"],
            f"{row['fast_s']:.3f}",
            f"{row['direct_s']:.1f}",
            f"{row['dtw_s']:.1f}",
            f"{row['direct_s'] / row['fast_s']:.0f}",
            f"{row['dtw_s'] / row['fast_s']:.0f}",
            f"{row['peak_mb']:.0f}",
            f"{row['max_abs_error']:.1e}",
        )
    console.print(table)
    console.print("direct and DTW: measured on a sample of pairs and scaled to all pairs; --json says how many")
