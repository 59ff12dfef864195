"""Every command with whatever a person, a script or an enemy may give it. The test knows one rule only: it ends with an
exit code and, if that is not 0, a sentence; never with an error that nobody thought of, never with half a file.

Options and their values are read off the commands themselves, so a new command or option is tried from its first day.
"""

import os
import random
import shutil
from pathlib import Path

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from replay.run.session import Session
from replay.sources.source import FileSource, ListSource, SortedSource
from stream_ccsd.cli.main import _explained, app

FAULT = 70
ACCOUNT = "c00001"

TEXTS = ["", " ", "nan", "-1", "\udcff", "a\0b", "=1", "[/x]", ":bomb:", "$x_{$", "@", "@none", "@good.csv", "a=b"]
TEXTS += ["none", "..", "/", "x" * 300, "é", "[", "{}", "null", "\n", "c00001", "fraud", "pattern", "json", "csv"]
TEXTS += ["parquet", "half_life=abc", "sigma_x=[1]", "holdout=nan", "sigma_u=1e-300", "alert_cap=1e30", "=", "a=b,c"]
WHOLE = ["0", "1", "2", "10", "-1", "x", "", "1.5", str(2**63), str(2**64), "9" * 400, "1e3", "\udcff"]
NUMBERS = ["0", "0.5", "1", "20", "-1", "nan", "inf", "-inf", "1e400", "1e-300", "1e300", "x", "", "2018-04-01"]

# Where any value would make a command wait for hours or leave this machine.
FIXED = {
    "--speed": ["max", "1e9", "99999", "fast", "nanx", "", "1000000x"],
    "--customers": ["10", "12", "0", "-1", "x", "1e3", str(10**30), str(10**9), "\udcff"],
    "--days": ["10", "12", "0", "-1", "x", str(10**30)],
    "--merchants": ["10", "50", "0", str(10**30)],
    "--seeds": ["0", "", "x", "-1", "0,", "1e3"],
    "--broker": ["kafka://127.0.0.1:1", "kafka://", "x", "", "kafka://a:99999999", "kafka://[::1]:1"],
    "--to": ["kafka://127.0.0.1:1/t", "kafka://127.0.0.1:1", "x", "", "kafka://h/t/u"],
    "--from": [
        "1",
        "nan",
        "inf",
        "x",
        "",
        "kafka://127.0.0.1:1/a",
        "kafka://",
        "2018-01-01",
        "good.csv",
        "lines.jsonl",
    ],
    "--sizes": ["3", "2,3", "x", "", "1", "-1"],
    "--length": ["5", "9", "0", "-1", "x"],
    "--resume": [None],
}
# Benchmarks take minutes whatever they are given; their options are tried where they are tested.
LEFT_OUT = {
    ("watch",),  # serves until it is stopped
    ("bench", "clusters"),
    ("bench", "engine"),
    ("bench", "kafka"),
    ("bench", "page"),
    ("bench", "replay"),
    ("bench", "sizing"),
    ("evaluate", "clustering"),
    ("evaluate", "drift"),
    ("evaluate", "rates"),
    ("bench", "pairwise"),
}
ALWAYS = {
    ("worker",): ["--check"],
    ("evaluate", "fraud"): ["--data", "good.csv", "--label", "pattern", "--no-cache"],
    ("verdict",): ["fraud"],
    ("simulate",): ["--customers", "10", "--days", "2"],
    ("replay",): ["--customers", "12"],
}


def _type_of(option):
    """Typer's newer versions say it this way; where they do not, numbers are tried as texts are."""
    return getattr(getattr(option, "type_descriptor", None), "annotation", None)


def commands(group=None, path=()):
    """Every command of the tree with its options: the name of each, whether it is a flag, and its type."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            options = [(p.opts[0], p.is_flag, _type_of(p)) for p in command.params if p.param_type_name == "option"]
            yield (*path, name), options


COMMANDS = {path: options for path, options in commands() if path not in LEFT_OUT}


@pytest.fixture(scope="module")
def places(tmp_path_factory, model, model_folder, stream, stream_file):
    """Good files, models and states, and damaged copies of them."""
    folder = tmp_path_factory.mktemp("fuzz")
    rows = stream_file.read_text().splitlines(keepends=True)
    (folder / "good.csv").write_text("".join(rows[:300]))
    (folder / "bare.csv").write_text(
        "account,time,amount,merchant\n" + "".join(f"a{i % 4},{i},{i},m\n" for i in range(60))
    )
    (folder / "empty.csv").write_text("")
    (folder / "lines.jsonl").write_text('{"account":"a","time":1,"amount":2,"merchant":"m"}\nnull\n{\n')
    source = FileSource(folder / "good.csv")
    Session(source, model, folder / "out", folder / "state.db").run()
    Session(SortedSource(FileSource(folder / "good.csv")), model, folder / "out", folder / "sorted.db").run()
    Session(ListSource("x", stream.transactions[:50]), model, folder / "out", folder / "list.db").run()
    (folder / "folder").mkdir()
    (folder / "link").symlink_to(folder / "none")
    (folder / "circle").symlink_to(folder / "circle")
    chance = random.Random(3)
    for name in ("good.csv", "state.db"):
        for number in range(4):
            data = bytearray((folder / name).read_bytes())
            for _ in range(1 + 20 * number):
                data[chance.randrange(len(data))] = chance.randrange(256)
            copy = folder / f"damaged{number}{Path(name).suffix}"
            copy.write_bytes(data[: chance.randrange(len(data))] if number == 3 else data)
    for number, change in enumerate([b"[" * 100_000, b"{}", b"", None]):
        copy = folder / f"model{number}"
        model.save(copy)
        if change is None:
            (copy / "laws.arrow").unlink()
        else:
            (copy / "model.json").write_bytes(change)
    model.save(folder / "model")
    return folder


# What "likely" fills in: with it, more examples come past the first check.
LIKELY = {"--data": "good.csv", "--model": "model", "--state": "state.db", "--account": ACCOUNT}


UNLIKELY = {(("replay",), "--state"), (("alerts",), "--account")}


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
@settings(
    max_examples=int(os.environ.get("FUZZ", "25")),
    derandomize="FUZZ" not in os.environ,  # FUZZ=500 looks for new trouble; CI tries the same each time
    suppress_health_check=list(HealthCheck),
)
@given(chance=st.integers(0, 2**32).map(random.Random))
def test_whatever_is_typed_ends_in_a_sentence(places, tmp_path_factory, path, chance):
    """Chance draws the words, not hypothesis: it would stay near what it has tried, and these are far apart."""
    options = COMMANDS[path]
    arguments = [*path, *ALWAYS.get(path, [])]
    names = sorted(p.name for p in places.iterdir())
    for name, is_flag, kind in chance.sample(options, min(len(options), chance.randint(0, 3))):
        arguments.append(name)
        if not is_flag:
            pool = FIXED.get(name) or {int: WHOLE, float: NUMBERS}.get(kind) or [*names, "new.json", *TEXTS]
            arguments.append(chance.choice(pool))
    if chance.random() < 0.8:
        known = {option for option, *_ in options}
        for name, value in LIKELY.items():
            if name in known and name not in arguments and (path, name) not in UNLIKELY:
                arguments += [name, "fresh" if path == ("fit",) and name == "--model" else value]
    work = tmp_path_factory.mktemp("work") / "copy"
    shutil.copytree(places, work, symlinks=True)
    before = Path.cwd()
    os.chdir(work)
    try:
        done = CliRunner().invoke(app, arguments)
    finally:
        os.chdir(before)
    error = done.exception
    if error is not None and not isinstance(error, SystemExit):
        said, code = _explained(error)
        if code == FAULT:
            raise AssertionError(f"{arguments}: {said}") from error
        assert said.strip()
    assert not [p.name for p in work.rglob("*.tmp")], arguments
    shutil.rmtree(work)


@pytest.mark.parametrize("path", sorted(set(COMMANDS) | LEFT_OUT), ids=" ".join)
def test_help_is_rendered(path):
    done = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERM": "xterm", "FORCE_COLOR": "1"})
    assert done.exit_code == 0, done.exception
    assert "Usage" in done.output
