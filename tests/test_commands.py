"""How commands are found, and how they take their options: one declaration each, one object."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from stream_ccsd.cli.command import Flags, SectionedCommand, given_flags, with_options
from stream_ccsd.cli.main import GROUP, _source_tree, app, declared_commands
from stream_ccsd.kafka.settings import WorkerSettings
from tests.commands import RUN

ROOT = Path(__file__).parent.parent
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][GROUP]


def taken(function, arguments):
    """What a command's function is given."""
    own = typer.Typer(rich_markup_mode=None)
    own.command(cls=SectionedCommand)(function)
    return CliRunner().invoke(own, arguments, catch_exceptions=False)


@dataclass(frozen=True)
class Some:
    place: Annotated[Path, typer.Option(help="Where.")]
    words: Annotated[list[str] | None, typer.Option("--word", help="Some.", rich_help_panel="More")] = None
    count: Annotated[int, typer.Option(help="How many.", min=0)] = 3
    loud: Annotated[bool, typer.Option("--loud", help="Whether.")] = False


@given(
    st.builds(
        Some,
        place=st.sampled_from([Path("a"), Path("b/c")]),
        words=st.none() | st.lists(st.from_regex("[a-z]{1,5}", fullmatch=True), min_size=1),
        count=st.integers(0, 10**9),
        loud=st.booleans(),
    )
)
def test_options_arrive_as_one_object(some):
    seen = []

    @with_options
    def command(options: Some, extra: Annotated[str, typer.Option(help="Beside it.")] = "none") -> None:
        seen.append((options, extra))

    arguments = ["--place", str(some.place), "--count", str(some.count), *(["--loud"] if some.loud else [])]
    arguments += [part for word in some.words or [] for part in ("--word", word)]
    assert taken(command, arguments).exit_code == 0
    assert seen == [(some, "none")]
    flags = {"--word": some.words is not None, "--count": some.count != 3, "--loud": some.loud}
    assert given_flags(some, ("words", "count", "loud")) == [flag for flag, given in flags.items() if given]


@pytest.mark.parametrize("arguments", [[], ["--place", "a", "--count", "-1"], ["--place", "a", "--none", "1"]])
def test_what_typer_refuses_is_refused(arguments):
    @with_options
    def command(options: Some) -> None:
        raise AssertionError(options)

    assert taken(command, arguments).exit_code == 2


def test_help_has_a_section_a_panel():
    @with_options
    def command(options: Some) -> None:
        """Do it."""

    shown = taken(command, ["--help"]).output
    assert re.search(r"Options:.*--place.*--count.*--help.*\n\nMore:\n +--word", shown, flags=re.DOTALL)
    assert "default: 3" in shown
    assert "Do it." in shown


def test_a_worker_takes_its_settings_as_flags():
    """All that are declared, and nothing that is spelled out beside them."""
    other = WorkerSettings(
        broker="kafka://a:1",
        model=Path("m"),
        group="g",
        transactions="t",
        scores="s",
        alerts="a",
        dead_letters="d",
        partitions=9,
        replication=3,
        create_topics=False,
        columns="account=user",
        check_key=False,
        store="memory",
        state_dir=Path("x"),
        standby_replicas=2,
        batch=7,
        guarantee="best-effort",
        commit_interval=2.5,
        session_timeout=30.0,
        heartbeat_interval=3.0,
        threshold=4.0,
        model_poll=6.0,
        web_host="0.0.0.0",
        web_port=1,
        log_format="text",
        log_level="debug",
        tls=True,
        ca_file=Path("ca"),
        cert_file=Path("cert"),
        key_file=Path("key"),
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password_file=Path("p"),
        suffix="challenger",
        verdicts="v",
        learning=True,
        explore=0.2,
    )
    names = [field.name for field in fields(WorkerSettings)]
    assert all(getattr(other, name) != getattr(WorkerSettings(), name) for name in names)
    seen = []

    @with_options
    def command(settings: Annotated[dict[str, Any], Flags(WorkerSettings)]) -> None:
        seen.append(settings)

    arguments = []
    for name in names:
        flag, value = f"--{name.replace('_', '-')}", getattr(other, name)
        if isinstance(value, bool):
            arguments.append(flag if value else flag.replace("--", "--no-"))
        else:
            arguments += [flag, str(value)]
    assert taken(command, arguments).exit_code == 0
    assert WorkerSettings.load(seen.pop(), None, {}) == other
    assert taken(command, []).exit_code == 0
    assert seen.pop() == {}  # a flag that is not given leaves variable and file their say


def test_help_of_a_worker_says_all_of_each_setting():
    shown = CliRunner().invoke(app, ["worker", "--help"]).output
    words = " ".join(shown.split())
    hints = get_type_hints(WorkerSettings, include_extras=True)
    for field in fields(WorkerSettings):
        default = {bool: {True: "yes", False: "no"}}.get(type(field.default), {}).get(field.default, field.default)
        told = f"{hints[field.name].__metadata__[0].help} [default: {default}]"
        assert re.search(rf"--{field.name.replace('_', '-')} ", words)
        assert (told if default not in (None, "") else told.partition(" [")[0]) in words
    titles = [line for line in shown.splitlines() if re.fullmatch(r"[A-Z]\w+:", line)]
    assert titles == ["Options:", "Topics:", "State:", "Work:", "Operations:", "Security:"]


def test_the_commands_of_this_tree_are_those_it_declares():
    found = {point.name: point.value for point in declared_commands() if point.dist is None}
    assert found == DECLARED
    assert list(typer.main.get_command(app).commands)[:3] == ["replay", "fit", "simulate"]


@pytest.mark.parametrize("text", ["", "[", "[project]\nname = 'other'", "[project]\nname = 'stream-ccsd'"])
def test_a_file_that_is_not_of_this_tree_says_nothing(tmp_path, text):
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    assert _source_tree(file) is None
    assert _source_tree(tmp_path / "none") is None


def distribution(folder, name, commands):
    """A distribution as an installer leaves it."""
    info = folder / f"{name.replace('-', '_')}-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n")
    lines = [f"{command} = {value}\n" for command, value in sorted(commands.items())]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "".join(lines))


def run(folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "80"}
    command = [sys.executable, "-c", RUN, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_installed_commands_are_found_and_broken_ones_harm_no_other(tmp_path):
    """Without a source tree around it, as installed: the commands are those of the metadata, ours and others'."""
    for name in ("stream_ccsd", "replay", "offline"):
        ignored = shutil.ignore_patterns("*.nbi", "*.nbc", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    distribution(tmp_path, "stream-ccsd", DECLARED)
    foreign = {"absent": "no_such_module:command", "broken": "faulty:command", "number": "more:NUMBER"}
    distribution(tmp_path, "more-commands", {**foreign, "hello": "more:hello"})
    (tmp_path / "faulty.py").write_text("raise RuntimeError('[/x] is gone')\n")
    (tmp_path / "more.py").write_text('NUMBER = 3\ndef hello():\n    """Greet."""\n    print("hello")\n')
    shown = run(tmp_path, "--help")
    assert shown.returncode == 0, shown.stderr
    listed = re.findall(r"^  ([a-z]+) ", shown.stdout.partition("Commands:")[2], flags=re.MULTILINE)
    commands = ["replay", "fit", "simulate", "alerts", "explain", "verdict", "verdicts", "budget"]
    commands += ["audit", "watch", "compare", "learn", "worker"]
    foreign_ones, groups = ["absent", "broken", "hello", "number"], ["models", "evaluate", "bench"]
    assert listed == [*commands, *foreign_ones, *groups]  # Typer lists groups behind commands
    assert run(tmp_path, "hello").stdout == "hello\n"
    for name, why in (("absent", "ModuleNotFoundError"), ("broken", "[/x] is gone"), ("number", "no function")):
        done = run(tmp_path, name, "--any", "thing")
        assert done.returncode == 1
        assert f"the command '{name}' cannot be loaded from {foreign[name]}" in done.stderr
        assert why in done.stderr
        assert "Traceback" not in done.stderr
    assert run(tmp_path, "simulate", "--out", "s.csv", "--customers", "3", "--days", "2").returncode == 0
