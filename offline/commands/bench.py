"""``stream-ccsd bench``: timings as ratios against a peer in the same run."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from offline.commands.options import DataRootOption, TransactionsOption
from stream_ccsd.cli.output import JsonOption, check_target, emit, plain_table, progress_bar
from stream_ccsd.errors import StreamCcsdError

app = typer.Typer(help="Measure speed and memory against peers, in one run on this machine.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure speed and memory against peers, in one run on this machine."""


@app.command()
def pairwise(
    sizes: Annotated[str, typer.Option(help="Numbers of series, comma-separated.")] = "200,1000,4500",
    length: Annotated[int, typer.Option(help="Length of the generated series.", min=2)] = 140,
    seed: Annotated[int, typer.Option(help="Seed of the generated series.", min=0)] = 0,
    data: DataRootOption = None,
    json_target: JsonOption = None,
) -> None:
    """All-pairs divergence: the fast form against the direct double sum and DTW.

    The two slow forms are timed on a sample of pairs and scaled to all of them; the result says how many.
    Real ECG5000 series are measured too where the data folder is given.
    """
    from offline.bench.pairwise import measure_pairwise

    if data is not None and not data.is_dir():
        raise StreamCcsdError(f"no folder {data}: --data (or STREAM_CCSD_DATA) names the folder with banksim/ and ucr/")
    counts = _numbers(sizes, "--sizes", least=2)
    if not counts:
        raise typer.BadParameter("name at least one size", param_hint="--sizes")
    check_target(json_target)
    with progress_bar() as start:
        result = measure_pairwise(counts, length, seed, data, start("bench pairwise"))
    emit(result, json_target, _show_pairwise)


@app.command()
def clusters(
    series: Annotated[int, typer.Option(help="How many generated series.", min=10)] = 20_000,
    compared: Annotated[int, typer.Option(help="Of them, on how many to compare all pairs, too.", min=10)] = 4_000,
    length: Annotated[int, typer.Option(help="Length of the series.", min=8)] = 140,
    kinds: Annotated[int, typer.Option(help="Kinds of series in them, and clusters sought.", min=2)] = 10,
    seed: Annotated[int, typer.Option(help="Of the series, and of what is random in clustering.", min=0)] = 0,
    json_target: JsonOption = None,
) -> None:
    """Clusters of many series, bandwidths chosen without labels: seconds and memory, without a matrix of all pairs.

    On fewer of the series medoids from samples stand beside FasterPAM on all pairs: what is lost.
    """
    from offline.bench.pairwise import measure_clusters

    if kinds > min(series, compared):
        raise typer.BadParameter("there must be at least as many series as kinds of them", param_hint="--kinds")
    check_target(json_target)
    with progress_bar() as start:
        bars = start("choosing bandwidths"), start("clustering")
        result = measure_clusters(series, min(compared, series), length, kinds, seed, *bars)
    emit(result, json_target, _show_clusters)


@app.command()
def engine(
    data: TransactionsOption = None,
    events: Annotated[int, typer.Option(help="About how many events to stream.", min=100)] = 60_000,
    library_sizes: Annotated[str, typer.Option(help="Library sizes, comma-separated.")] = "15000,100000,1000000",
    accounts: Annotated[str, typer.Option(help="Numbers of accounts, comma-separated.")] = "10000,100000,1000000",
    merchants: Annotated[str, typer.Option(help="Numbers of merchants, comma-separated.")] = "1000,100000,1000000",
    json_target: JsonOption = None,
) -> None:
    """The streaming engine: events per second, latency, memory; against plain numpy and river's HalfSpaceTrees.

    One core, the same events for all. A million accounts take about 5 GB of memory while they are measured.
    """
    from offline.bench.engine import measure_engine

    sizes, numbers = _numbers(library_sizes, "--library-sizes"), _numbers(accounts, "--accounts")
    shops = _numbers(merchants, "--merchants")
    check_target(json_target)
    with progress_bar() as start:
        result = measure_engine(data, events, sizes, numbers, shops, start("bench engine"))
    emit(result, json_target, _show_engine)


@app.command()
def replay(
    data: TransactionsOption = None,
    customers: Annotated[int, typer.Option(help="Of the simulated stream, 60 days long.", min=20)] = 1500,
    json_target: JsonOption = None,
) -> None:
    """A whole file through the replay: in memory, and with state in SQLite; rate, memory, time outside scoring."""
    from offline.bench.replay import measure_replay

    check_target(json_target)
    with progress_bar() as start:
        result = measure_replay(data, customers, start("bench replay"))
    emit(result, json_target, _show_replay)


@app.command()
def kafka(
    broker: Annotated[
        str | None,
        typer.Option(metavar="URL", help="kafka://host:port; by default one is started (Java 17 and Maven)."),
    ] = None,
    transactions: Annotated[int, typer.Option(help="Simulated, for each rate.", min=5000)] = 60_000,
    seconds: Annotated[float, typer.Option(help="How long to send 1,000 a second.", min=1.0)] = 20.0,
    json_target: JsonOption = None,
) -> None:
    """Kafka workers, broker and load on this machine: rates of one and two, latency; beside Faust and Quix Streams."""
    from offline.peers import peer

    peer("faust")
    peer("confluent_kafka")
    from offline.bench.kafka import measure_kafka

    check_target(json_target)
    with progress_bar() as start:
        result = measure_kafka(broker, transactions, seconds, start("bench kafka"))
    emit(result, json_target, _show_kafka)


@app.command()
def sizing(
    broker: Annotated[
        str | None,
        typer.Option(metavar="URL", help="kafka://host:port; by default one is started (Java 17 and Maven)."),
    ] = None,
    accounts: Annotated[int, typer.Option(help="Of the worker that is measured.", min=20)] = 4000,
    days: Annotated[int, typer.Option(help="Of their histories; full after half a year.", min=60)] = 220,
    json_target: JsonOption = None,
) -> None:
    """What a cluster needs: costs of one Kafka worker, measured, and multiplied out for rates and accounts.

    The worker's accounts have full histories. What was measured, what was assumed and what was multiplied out are told
    apart, also in the JSON. It takes some minutes.
    """
    from offline.peers import peer

    peer("faust")
    peer("confluent_kafka")
    from offline.bench.sizing import measure_sizing

    check_target(json_target)
    with progress_bar() as start:
        result = measure_sizing(broker, accounts, days, start("bench sizing"))
    emit(result, json_target, _show_sizing)


@app.command()
def page(
    transactions: Annotated[int, typer.Option(help="In the state file that is looked at.", min=1000)] = 1_000_000,
    alerts: Annotated[int, typer.Option(help="Alerts in it, about.", min=10)] = 20_000,
    requests: Annotated[int, typer.Option(help="Of each view.", min=5)] = 60,
    customers: Annotated[int, typer.Option(help="Of the stream that is replayed, 60 days long.", min=20)] = 1500,
    runs: Annotated[int, typer.Option(help="Replays, each with and without a page.", min=1)] = 3,
    json_target: JsonOption = None,
) -> None:
    """The live page: milliseconds of each view over a large state file, and what it costs a replay to be watched."""
    from offline.bench.page import measure_page

    check_target(json_target)
    with progress_bar() as start:
        result = measure_page(transactions, alerts, requests, customers, runs, start("bench page"))
    emit(result, json_target, _show_page)


def _show_clusters(console: Console, result: dict[str, Any]) -> None:
    beside = result["compared"]
    console.print(
        f"{result['series']:,} series of length {result['length']}, {result['clusters']} clusters, {result['threads']} "
        f"threads: {result['seconds']:.0f} s ({result['choosing_s']:.0f} s of it for bandwidths), peak memory "
        f"{result['peak_mb']:,.0f} MB (all pairs alone would take {result['matrix_mb']:,.0f}); NMI {result['nmi']:.3f}"
    )
    table = plain_table(f"on {beside['series']:,} of them", [""], ["seconds", "loss", "NMI"])
    for name, prefix in (("FasterPAM on all pairs", "all_pairs"), ("… on samples", "samples")):
        figures = (beside[f"{prefix}_{key}"] for key in ("s", "loss", "nmi"))
        table.add_row(name, *(f"{figure:,.3f}" for figure in figures))
    console.print(table)


def _show_page(console: Console, result: dict[str, Any]) -> None:
    title = f"{result['transactions']:,} transactions, {result['alerts']:,} alerts in the state file"
    table = plain_table(title, ["view"], ["p50 ms", "p95 ms"])
    for row in result["views"]:
        table.add_row(row["view"], f"{row['p50_ms']:.0f}", f"{row['p95_ms']:.0f}")
    console.print(table)
    rates = result["replay_events_per_s"]
    console.print(
        f"a page that follows costs a replay {result['replay_slowdown']:.1%} of its speed "
        f"({', '.join(f'{rate:,.0f}' for rate in rates['alone'])} records/s alone, "
        f"{', '.join(f'{rate:,.0f}' for rate in rates['watched'])} watched)"
    )


def _show_sizing(console: Console, result: dict[str, Any]) -> None:
    measured, assumed = result["measured"], result["assumed"]
    said = {name: f"{value:,.0f}" for name, value in measured.items()}
    console.print(
        f"measured, one worker, {said['accounts']} accounts, {said['transactions']} transactions "
        f"({measured['states_per_transaction']:.2f} states each): {said['cpu_us_per_transaction']} us of a core a "
        f"transaction, {said['worker_mb']} MB; an account takes {said['store_bytes_per_account']} bytes in RocksDB and "
        f"{said['state_bytes_per_account']} in the changelog; a transaction is {said['transaction_bytes']} bytes, its "
        f"score {said['score_bytes']}, alerts {said['alert_bytes_per_transaction']}"
    )
    console.print(
        f"assumed: cores {assumed['busy']:.0%} busy, {assumed['partitions_a_worker']} partitions a worker and at least "
        f"{assumed['fewest_partitions']}, {assumed['cache_mb_a_partition']:.0f} MB of RocksDB's caches a partition, "
        f"{assumed['uncompacted_hours']:.0f} hours of the changelog not compacted yet"
    )
    numbers = ["tx/s", "accounts", "cores", "partitions", "memory", "stores", "changelog", "topics/day"]
    title = "multiplied out: a core a worker; memory and disks in GB, brokers' for one replica"
    table = plain_table(title, numbers=numbers)
    for row in result["multiplied"]:
        sizes = (f"{row[name]:,.0f}" for name in ("store_gb", "changelog_gb", "topics_gb_a_day"))
        counts = (f"{row[name]:,}" for name in ("rate", "accounts", "cores", "partitions"))
        table.add_row(*counts, f"{row['memory_gb']:,.1f}", *sizes)
    console.print(table)


def _show_kafka(console: Console, result: dict[str, Any]) -> None:
    table = plain_table(
        f"{result['transactions']:,} transactions ({result['with_divergence']:.0%} with all scores), "
        f"{result['partitions']} partitions, {result['library_windows']:,} library windows; all on one machine",
        [""],
        ["messages/s"],
    )
    for row in result["workers"]:
        table.add_row(f"{row['workers']} worker{'s' if row['workers'] > 1 else ''}", f"{row['tx_per_s']:,.0f}")
    table.add_row("bare Faust agent: reads, does nothing", f"{result['bare_faust_per_s']:,.0f}")
    table.add_row("Quix Streams: a count by key", f"{result['quix_per_s']:,.0f}")
    console.print(table)
    console.print(
        f"at 1,000/s, from sending to having the score: p50 {result['p50_ms_at_1000']:.1f} ms, "
        f"p99 {result['p99_ms_at_1000']:.1f} ms"
    )


def _show_replay(console: Console, result: dict[str, Any]) -> None:
    title = f"{result['events']:,} records of {escape(result['data'])}"
    table = plain_table(title, [""], ["records/s", "outside scoring", "peak memory"])
    for name, prefix in (("in memory", ""), ("state in SQLite", "durable_")):
        table.add_row(
            name,
            f"{result[prefix + 'events_per_s']:,.0f}",
            f"{result[prefix + 'outside_scoring_share']:.0%}",
            f"{result[prefix + 'peak_rss_mb']:,.0f} MB",
        )
    console.print(table)
    console.print(
        f"with durable state {result['durable_share']:.0%} of the rate; state file {result['state_mb']:,.0f} MB"
    )


def _numbers(text: str, option: str, least: int = 1) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise typer.BadParameter(f"expected numbers like 200,1000, got {text!r}", param_hint=option) from error
    if any(n < least for n in numbers):
        raise typer.BadParameter(f"each must be at least {least}", param_hint=option)
    return numbers


def _show_engine(console: Console, result: dict[str, Any]) -> None:
    table = plain_table(
        f"{result['events']:,} events of {escape(result['data'])}, {result['library_windows']:,} library windows, "
        "one core",
        [""],
        ["events/s", "against the engine"],
    )
    ours = result["events_per_s"]
    rows: tuple[tuple[str, float], ...] = (
        ("engine, one at a time", ours),
        ("engine, batches of 1,000", result["batch_events_per_s"]),
        ("engine without the divergence score", result["without_divergence_events_per_s"]),
        ("plain numpy, divergence score only", result["naive_events_per_s"]),
        ("river HalfSpaceTrees", result["hst_events_per_s"]),
    )
    many = result["many_merchants"]
    rows += ((f"engine, batches, {many['merchants']:,} merchants ({many['data']})", many["batch_events_per_s"]),)
    for name, rate in rows:
        table.add_row(name, f"{rate:,.0f}", f"{rate / ours:.3g}x")
    console.print(table)
    console.print(
        f"latency p50 {result['p50_us']:.0f} us, p99 {result['p99_us']:.0f} us; first score after "
        f"{result['first_score_cold_s']:.1f} s cold, {result['first_score_warm_s']:.1f} s warm, "
        f"{result['first_score_shipped_s']:.1f} s from a wheel with its cache; "
        f"{result['bytes_per_account']:.0f} bytes an account (at most {result['largest_account_bytes']})"
    )
    for row in result["library"]:
        console.print(
            f"library of {row['windows']:,}: {row['us_per_query']:.0f} us a query, exact; faiss IVF "
            f"{row['faiss_us_per_query']:.0f} us with recall {row['faiss_recall']:.2f}"
        )
    for row in result["accounts"]:
        console.print(f"{row['accounts']:,} accounts: {row['rss_mb']:,.0f} MB, {row['events_per_s']:,.0f} events/s")
    for row in result["merchants"]:
        console.print(f"library with {row['merchants']:,} merchants: {row['us_per_query']:.0f} us a query, exact")


def _show_pairwise(console: Console, result: dict[str, Any]) -> None:
    numbers = ("series", "data", "fast s", "direct s", "DTW s", "vs direct", "vs DTW", "MB", "error")
    table = plain_table(f"All pairs, {result['threads']} threads", numbers=numbers)
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
