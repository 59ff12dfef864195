"""``stream-ccsd watch``: the live page, on which investigators see, judge and tune."""

from __future__ import annotations

import gc
import json
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from replay.commands.kafka import KafkaConfigOption
from replay.commands.options import OptionalStateOption, check_account
from replay.commands.verdict_topic import login_name
from replay.watch.demo import SPEED
from stream_ccsd.cli.command import given_flags, with_options
from stream_ccsd.cli.output import JsonOption, check_target, make_console, stoppable
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.files import write_whole

_LOOK_AGAIN = 0.1
# Seconds that the first answer may wait for what was recorded before; a longer history is seen to grow.
_FIRST_READ = 2.0
_WHO_MAY = "Who may use it"


@dataclass(frozen=True)
class WatchOptions:
    """Options of ``stream-ccsd watch``."""

    state: OptionalStateOption = None
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="kafka://HOST:PORT",
            help="Watch workers: their scores and alerts come from Kafka, verdicts go there. Then --state is where "
            "they are kept between starts, with the book; without it they are gone with the page.",
        ),
    ] = None
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With --from: the workers' model, or the folder of versions they follow: for dates, laws and pins.",
        ),
    ] = None
    kafka_config: KafkaConfigOption = None
    keep: Annotated[
        int, typer.Option(metavar="N", min=1000, help="With --from: how many transactions are kept here.")
    ] = 1_000_000
    suffix: Annotated[
        str, typer.Option(metavar="NAME", help="With --from: of topics of workers that run with --suffix.")
    ] = ""
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen. Beyond 127.0.0.1 people log in.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 is any free port.")] = 8360
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page in a browser.")] = False
    claim_minutes: Annotated[
        float, typer.Option(metavar="MINUTES", help="How long a case that somebody took is theirs.")
    ] = 10.0
    speed: Annotated[
        str, typer.Option(help="Of the demo: 100 (transactions a second), max, or 10x (days a second).")
    ] = SPEED
    who: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Your name, where nobody logs in [default: your login name].", rich_help_panel=_WHO_MAY
        ),
    ] = None
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='People, in TOML: [ann], token = "…" (or token_sha256), role = "view", "judge" or "tune". Then '
            "everyone logs in, also on this machine.",
            rich_help_panel=_WHO_MAY,
        ),
    ] = None
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The header in which a proxy that people log in to says who they are; needs --trusted-proxy.",
            rich_help_panel=_WHO_MAY,
        ),
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="The proxy's address or network, once for each: nobody else may say who somebody is.",
            rich_help_panel=_WHO_MAY,
        ),
    ] = None
    role: Annotated[
        str | None,
        typer.Option(
            metavar="view|judge|tune",
            help="With --user-header: what people may do who are not in --users [default: view].",
            rich_help_panel=_WHO_MAY,
        ),
    ] = None
    host_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name under which people reach it, once for each; others are refused.",
            rich_help_panel=_WHO_MAY,
        ),
    ] = None
    behind_https: Annotated[
        bool,
        typer.Option(
            "--behind-https",
            help="A proxy in front of it speaks https: cookies are for https only.",
            rich_help_panel=_WHO_MAY,
        ),
    ] = False
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Nobody judges or tunes.", rich_help_panel=_WHO_MAY)
    ] = False
    json_target: JsonOption = None


_OF_KAFKA = ("kafka_config", "model", "keep", "suffix")


@with_options
def watch(options: WatchOptions) -> None:
    """Serve the live page: what happens now, a queue of cases, accounts, thresholds, models, an audit log.

    Over the state file of a replay, while it runs or afterwards; over Kafka; or, without either, over a simulated town
    that is replayed meanwhile.

    On 127.0.0.1 nobody logs in, so that whoever uses this machine may judge and tune; --users changes that. Ctrl-C ends
    it. With --json it writes {"url": …} once it listens.
    """
    _check(options)
    with page_extra():
        from replay.watch.app import build_app
        from replay.watch.server import is_loopback, listen, serve, url_of

    console = make_console(stderr=options.json_target == "-")
    with stoppable() as stop, ExitStack() as stack:
        with closing(listen(options.host, options.port)) as tried:  # what cannot be is said before there is work
            access = _access(options, is_loopback(tried))
        source = _source(options, stack, stop, console)
        if source is None:  # stopped while it waited
            return
        # Only now: a browser that comes earlier is refused, and not kept waiting.
        listening = stack.enter_context(closing(listen(options.host, options.port)))
        watched = stack.enter_context(closing(_watched(options, *source)))
        demo = options.state is None and options.source is None
        port = listening.getsockname()[1]
        app = build_app(watched, access, extras=_extras(), demo=demo, cookie=f"stream_ccsd_{port}")
        watched.caught_up(_FIRST_READ)  # who has no script sees what was there when the page was opened, and no more
        _say(url_of(listening, options.host), options, console)
        serve(app, listening, stop)


@contextmanager
def page_extra() -> Iterator[None]:
    """Around imports that need it."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("replay", "stream_ccsd"):
            raise
        raise StreamCcsdError(f"the page needs {error.name}: pip install 'stream-ccsd[page]'") from error


def _check(options: WatchOptions) -> None:
    """Everything that can be wrong with the options together, before there is work."""
    from replay.sources.source import Pace

    check_target(options.json_target)
    if options.source is None and (given := given_flags(options, _OF_KAFKA)):
        raise StreamCcsdError(f"{', '.join(given)}: only with --from kafka://host:port")
    if (options.state or options.source) and (given := given_flags(options, ("speed",))):
        raise StreamCcsdError(f"{given[0]} is that of the demo: leave out --state and --from")
    if options.state is not None and not options.state.absolute().parent.is_dir():
        raise StreamCcsdError(f"there is no folder {options.state.parent}: name the state file of a replay")
    if not 0 < options.claim_minutes <= 24 * 60:
        raise StreamCcsdError(f"--claim-minutes {options.claim_minutes} is none: expected more than 0, at most 1440")
    Pace.parse(options.speed)
    check_account(options.who, "--who")


def _access(options: WatchOptions, loopback: bool) -> Any:
    from replay.watch.auth.access import chosen_access
    from replay.watch.auth.users import Users

    by_header = options.user_header is not None
    return chosen_access(
        login_name() if options.who is None else options.who,
        loopback=loopback,
        users=None if options.users is None else Users.load(options.users, with_tokens=not by_header),
        header=options.user_header,
        proxies=options.trusted_proxy or (),
        role=options.role,
        host=options.host,
        host_names=options.host_name or (),
        behind_https=options.behind_https,
        read_only=options.read_only,
    )


def _source(
    options: WatchOptions, stack: ExitStack, stop: Callable[[], bool], console: Console
) -> tuple[Path, Any] | None:
    """The state file to watch, and where verdicts go beside its audit log; None where nobody wants it any more."""
    if options.source is not None:
        from replay.commands.kafka import kafka_extra

        with kafka_extra():
            from replay.mirror.mirror import open_mirror

        mirror = open_mirror(
            options.source,
            config=options.kafka_config,
            state=options.state,
            keep=options.keep,
            suffix=options.suffix,
            model=options.model,
        )
        stack.enter_context(closing(mirror))
        return mirror.path, mirror.send
    if options.state is None:
        from replay.watch.demo import Demo

        demo = stack.enter_context(Demo(options.speed))
        _note(console, "the model of a simulated town is being fitted: that takes some seconds")
        there = _wait(demo.state, stop, demo.check)
        if there:
            threading.Thread(target=_report, args=(demo, stop), daemon=True).start()
        return (demo.state, None) if there else None
    if not options.state.exists():
        replaying = f"'stream-ccsd replay --state {options.state}' makes it"
        _note(console, f"waiting for {options.state}: {replaying}; Ctrl-C ends this")
    return (options.state, None) if _wait(options.state, stop) else None


def _wait(state: Path, stop: Callable[[], bool], check: Callable[[], None] = lambda: None) -> bool:
    """Until there is a state file; whether there is."""
    while not state.exists():
        if stop():
            return False
        check()
        time.sleep(_LOOK_AGAIN)
    return not stop()


def _report(demo: Any, stop: Callable[[], bool]) -> None:
    """Report it if the replay breaks off while a page follows it; what there is stays to be seen."""
    while not stop():
        try:
            demo.check()
        except (StreamCcsdError, OSError) as error:
            if not stop():
                typer.echo(f"stream-ccsd: {error}", err=True)
            return
        time.sleep(1.0)


def _watched(options: WatchOptions, state: Path, sender: Any) -> Any:
    with page_extra():
        from replay.watch.service import PageService

    watched = PageService(state, claim_seconds=60 * options.claim_minutes, send=sender, models=options.model)
    threading.Thread(target=_settle, args=(watched,), daemon=True).start()
    return watched


def _settle(watched: Any) -> None:
    """What was read at the start stays: to look for garbage among it again and again costs tenths of a second."""
    watched.caught_up(600.0)
    gc.collect()
    gc.freeze()


def _extras() -> dict[str, Any]:
    """What templates draw with."""
    from replay.watch import charts

    return {"charts": charts}


def _say(url: str, options: WatchOptions, console: Console) -> None:
    if options.json_target is not None:
        said = json.dumps({"url": url})
        if options.json_target == "-":
            typer.echo(said)
        else:
            write_whole(Path(options.json_target), said + "\n")
    _note(console, f"the page is at {url} (Ctrl-C ends it)")
    if console.is_terminal and not options.no_browser and options.json_target is None:
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def _note(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)
