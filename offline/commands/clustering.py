"""``stream-ccsd evaluate clustering``: beside the field without labels, and with them; the paper's Table 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.markup import escape

from offline.commands.options import CacheOption, cache_folder
from stream_ccsd.cli.command import with_options
from stream_ccsd.cli.output import DEAD_LETTERS, STOPPED, JsonOption, check_target, emit, plain_table, progress_bar
from stream_ccsd.errors import StreamCcsdError


@dataclass(frozen=True)
class ClusteringOptions:
    """Options of ``stream-ccsd evaluate clustering``."""

    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of data sets in the UCR archive's layout (Name/Name_TRAIN.tsv, .ts or .txt), or one with ucr/ "
            "in it; by default the Cylinder-Bell-Funnel problem is made on the spot.",
        ),
    ] = None
    datasets: Annotated[
        str | None,
        typer.Option(help="Names, comma-separated, or all; by default all, with paper its four."),
    ] = None
    protocol: Annotated[
        str,
        typer.Option(
            help="label-free (every method at its defaults on TEST's series, no labels), full (settings chosen by "
            "TRAIN's labels, slopes too, FasterPAM) or paper (Table 1)."
        ),
    ] = "full"
    distances: Annotated[
        str | None,
        typer.Option(
            help="Of ccsd, dtw, msm, ed, with label-free also kasba, kshape; by default ccsd,ed, with label-free all "
            "of these, which has ccsd-straight, msm-paths and dtw-paths beside them. DTW and MSM take minutes on "
            "thousands of series."
        ),
    ] = None
    weights: Annotated[str, typer.Option(help="one-sided, two-sided, or both, comma-separated.")] = "one-sided"
    outputs: Annotated[
        str, typer.Option(help="With full, what is compared: of value, slope, both (added), vector (slow).")
    ] = "value,slope,both"
    cap: Annotated[
        int | None, typer.Option(min=2, help="Take at most so many series a part, classes in proportion.")
    ] = None
    published: Annotated[bool, typer.Option(help="With paper: use Table 1's tau and sigma, choose nothing.")] = False
    tau: Annotated[float | None, typer.Option(help="Use this tau (up to 1: a share of length), with --sigma.")] = None
    sigma: Annotated[float | None, typer.Option(help="Use this sigma on values, with --tau.")] = None
    report: Annotated[Path | None, typer.Option(metavar="DIR", help="Write report.html with maps to DIR.")] = None
    use_cache: CacheOption = True
    json_target: JsonOption = None


@with_options
def clustering(options: ClusteringOptions) -> None:
    """Cluster labelled series by C-CSD and other methods, without labels or with settings chosen on TRAIN's.

    A data set that cannot be read, capped or clustered is reported, and the others go on. What is finished is kept, and
    a second run goes on from there; --no-cache starts afresh, and keeps nothing.

    Exit code 0: all was done; 3: some data sets failed, and are listed; 130: stopped by Ctrl-C, what was finished is
    shown.
    """
    from offline.clustering.distances import DISTANCES
    from offline.clustering.evaluate import Experiment, evaluate_clustering
    from offline.clustering.protocols import DEFAULTS, METHODS
    from stream_ccsd.clustering.bandwidths import Output
    from stream_ccsd.divergence.kernels import Weighting

    if options.protocol not in ("label-free", "full", "paper"):
        said = f"expected label-free, full or paper, got {options.protocol!r}"
        raise typer.BadParameter(said, param_hint="--protocol")
    known: tuple[str, ...] = METHODS if options.protocol == "label-free" else DISTANCES
    usual = ",".join(DEFAULTS) if options.protocol == "label-free" else "ccsd,ed"
    if (options.tau is None) != (options.sigma is None):
        raise typer.BadParameter("give --tau and --sigma together", param_hint="--tau")
    experiment = Experiment(
        options.protocol,  # type: ignore[arg-type]
        _names(usual if options.distances is None else options.distances, known, "--distances"),
        _names(options.weights, get_args(Weighting), "--weights"),
        _names(options.outputs, get_args(Output), "--outputs"),
        options.cap,
        options.published,
        None if options.tau is None or options.sigma is None else (options.tau, options.sigma),
    )
    check_target(options.json_target)
    pictures: list[Any] | None = None if options.report is None else []
    with progress_bar() as start:
        sources = _sources(options.data, options.datasets, options.protocol)
        cache = cache_folder() if options.use_cache else None
        result = evaluate_clustering(sources, experiment, cache, start("data sets and distances"), pictures)
    if options.report is not None and pictures is not None:
        from offline.clustering.report import write_report

        typer.echo(f"report: {write_report(result, pictures, options.report)}", err=True)
    emit(result, options.json_target, _show)
    if result["kept"]:
        typer.echo(f"{result['kept']} results are of an earlier run; --no-cache starts afresh", err=True)
    if not result["complete"]:
        raise typer.Exit(STOPPED)
    if result["failed"]:
        raise typer.Exit(DEAD_LETTERS)


def _names(given: str, known: Any, option: str) -> tuple[Any, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"expected some of {', '.join(known)}, got {unknown[0]!r}", param_hint=option)
    return names


def _sources(data: Path | None, datasets: str | None, protocol: str) -> list[Any]:
    from offline.clustering.data import ArchiveSource, cylinder_bell_funnel, dataset_names
    from offline.published import TABLE_1

    if data is None:
        if datasets is not None:
            raise StreamCcsdError("--datasets needs --data: the folder that holds them")
        return [cylinder_bell_funnel]
    root = data / "ucr" if (data / "ucr").is_dir() else data
    known = dataset_names(root)
    if not known:
        raise StreamCcsdError(f"no data sets in {root}: expected folders like Coffee/ with Coffee_TRAIN.tsv in it")
    if datasets is None:
        paper = [name for name in TABLE_1 if name in known]
        names = (paper or known) if protocol == "paper" else known
    elif datasets == "all":
        names = known
    else:
        names = [name.strip() for name in datasets.split(",")]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise StreamCcsdError(f"no data set {unknown[0]!r} in {root}; there are {', '.join(known)}")
    return [ArchiveSource(root, name) for name in names]


def _show(console: Console, result: dict[str, Any]) -> None:
    from offline.clustering.report import comparison_table, failures_table, runs_table

    runs = result["runs"]
    if runs:
        cap = f", at most {runs[0]['cap']:,} series a part" if runs[0]["cap"] else ""
        free = runs[0]["protocol"] == "label-free"
        chosen = (
            "defaults, NMI on TEST, mean of three seeds" if free else "chosen on TRAIN, NMI on TEST, mean of five seeds"
        )
        title = f"{runs[0]['protocol']} protocol{cap}; {chosen}"
        rows = runs_table(runs)
        if runs[0]["protocol"] == "paper":  # the method is what its rows differ in
            names = [f"{run['distance']} {run.get('weights') or ''} {run['method']}".replace("  ", " ") for run in runs]
            rows["distance"] = names
        rows["data set"] = rows["data set"].map(escape).mask(rows["data set"] == rows["data set"].shift(), "")
        _print_table(console, title, rows[["data set", "distance", "setting", "NMI", "±", "ARI", "seconds"]], texts=3)
    if result.get("comparison"):
        console.print()
        chose = "" if runs[0]["protocol"] == "label-free" else "; a name without an output chose it on TRAIN"
        title = f"means over {result['comparison']['datasets']} data sets, w/t/l: wins of ccsd{chose}"
        _print_table(console, title, comparison_table(result["comparison"]), texts=1)
    if result["failed"]:
        console.print()
        _print_table(console, "could not be done", failures_table(result["failed"]).map(escape), texts=3)
    if not result["complete"]:
        console.print("stopped before the end: the same command goes on from here")


def _print_table(console: Console, title: str, rows: Any, texts: int) -> None:
    """A frame of texts, of which the first so many columns are words and the others numbers."""
    columns = list(rows)
    table = plain_table(title, columns[:texts], columns[texts:])
    for row in rows.to_numpy().tolist():
        table.add_row(*row)
    console.print(table)
