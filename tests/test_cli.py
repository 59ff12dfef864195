import json
import os
import pty
import subprocess
import sys

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.markup import escape
from typer.testing import CliRunner

from stream_ccsd.cli.main import app
from stream_ccsd.cli.output import make_console, plain_table
from tests.commands import RUN

runner = CliRunner()


def commands(command, path=()):
    """Every command and group of the tree, with the words that lead there."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


TREE = list(commands(typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), TREE, ids=lambda x: " ".join(x) if isinstance(x, tuple) else "")
def test_help_of_every_command(path, command):
    result = runner.invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80", "FORCE_COLOR": "1"})
    assert result.exit_code == 0, result.exception
    assert "Usage" in result.output
    assert max(map(len, result.output.splitlines())) <= 80
    for option in command.params:
        assert option.opts[0] in result.output


@pytest.mark.early
def test_the_command_line_loads_no_compiled_code():
    """So that --help answers at once, and a wish to stop is heard before anything has begun."""
    command = (
        "import sys, stream_ccsd.cli.main; print(*sorted({'numpy', 'numba', 'pyarrow', 'scipy'} & {*sys.modules}))"
    )
    assert subprocess.check_output([sys.executable, "-c", command], text=True).split() == []


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_without_arguments_there_is_help(arguments):
    assert "Usage" in runner.invoke(app, arguments).output


def test_help_on_a_terminal():
    """A real one, where colours and boxes would be: brackets in a help text must stay what they are."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    command = [sys.executable, "-c", RUN, "alerts", "--help"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65_536):
                shown += part
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0, shown
    assert b"kafka://host:port[/topic]" in shown


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=4),
    st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=300),
)
def test_tables_fold_names_and_never_cut_numbers(values, name):
    numbers = [f"{value:,.2f}" for value in values[:3]]
    table = plain_table("a title", ["name"], [f"n{i}" for i in range(len(numbers))], ["why"])
    table.add_row(escape(name), *numbers, escape(name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        console = make_console()
        with console.capture() as shown:
            console.print(table)
    assert all(number in shown.get() for number in numbers)
    assert "…" not in shown.get() or "…" in name
    assert all(cell_len(line) <= 80 for line in shown.get().split("\n"))


def test_bench_pairwise_prints_json_alone():
    result = runner.invoke(
        app,
        ["bench", "pairwise", "--sizes", "20,6", "--length", "15", "--json", "-"],
        env={"STREAM_CCSD_DATA": ""},
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["sizes"]
    assert [row["series"] for row in rows] == [6, 20]
    for row in rows:
        assert {"fast_s", "direct_s", "dtw_s", "peak_mb", "max_abs_error", "length"} <= row.keys()
        assert row["max_abs_error"] < 1e-10


def test_bench_pairwise_table_and_file(tmp_path):
    target = tmp_path / "result.json"
    result = runner.invoke(app, ["bench", "pairwise", "--sizes", "5", "--length", "9", "--json", str(target)])
    assert result.exit_code == 0, result.output
    assert "vs DTW" in result.output
    assert json.loads(target.read_text())["sizes"]
    assert list(tmp_path.iterdir()) == [target]


def test_bench_pairwise_on_real_series(data_root):
    arguments = [
        "bench",
        "pairwise",
        "--sizes",
        "5",
        "--length",
        "9",
        "--json",
        "-",
        "--data",
        str(data_root),
    ]
    rows = json.loads(runner.invoke(app, arguments).stdout)["sizes"]
    assert rows[-1]["source"] == "ECG5000"
    assert rows[-1]["series"] == 4500
    assert rows[-1]["max_abs_error"] < 1e-10


@pytest.mark.parametrize("sizes", ["1", "ten", "200,1.5", ""])
def test_bench_pairwise_refuses_sizes(sizes):
    result = runner.invoke(app, ["bench", "pairwise", "--sizes", sizes])
    assert result.exit_code == 2
    assert "--sizes" in result.output


def test_bench_engine_prints_json_alone(tmp_path):
    target = tmp_path / "engine.json"
    arguments = ["bench", "engine", "--events", "400", "--library-sizes", "1000", "--accounts", "50"]
    arguments += ["--merchants", "100,3000", "--json", str(target)]
    environment = {name: value for name, value in os.environ.items() if name != "STREAM_CCSD_DATA"}
    # In a process of its own: the benchmark binds itself to one core.
    done = subprocess.run(
        [sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    numbers = (
        "events_per_s batch_events_per_s naive_events_per_s hst_events_per_s p50_us p99_us "
        "first_score_cold_s first_score_warm_s first_score_shipped_s bytes_per_account"
    )
    assert all(result[name] > 0 for name in numbers.split())
    assert result["library"][0]["recall"] == 1.0
    assert {"accounts", "rss_mb", "events_per_s"} <= result["accounts"][0].keys()
    assert [row["merchants"] for row in result["merchants"]] == [100, 3000]
    assert all(row["us_per_query"] > 0 for row in result["merchants"])
    assert result["many_merchants"]["merchants"] > 1000
    assert result["many_merchants"]["batch_events_per_s"] > 0


@pytest.mark.parametrize("arguments", [["replay", "--seed", "-1"], ["replay", "--customers", "1"]])
def test_numbers_out_of_range_are_usage_errors(arguments):
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "--json", "nowhere/result.json"], "cannot write to"),
        (["replay", "--json", ""], "cannot write to"),
        (["replay", "--set", "alert_rate=2"], "alert_rate is 2"),
        (["replay", "--set", "alertrate=2"], "unknown setting"),
        (["replay", "--speed", "quick"], "none of: max"),
        (["replay", "--resume"], "--resume needs --state"),
        (["replay", "--label", "fraud"], "need --data"),
        (["replay", "--data", "README.md"], "unknown format"),
        (["replay", "--data", "README.md", "--unseen"], "it needs --model"),
        (["replay", "--data", "README.md", "--model", "m", "--field", "a:number"], "--field would change the model"),
        (["replay", "--alert-rate", "0.1", "--threshold", "3"], "give one of them"),
        (["replay", "--field", "shoe:number"], "a simulated town has no shoe:number"),
        (["replay", "--data", "nowhere.csv", "--model", "m"], "there is no file nowhere.csv"),
        (["fit", "--data", "nowhere.csv", "--model", "m"], "there is no file nowhere.csv"),
        (["simulate", "--out", "stream.txt"], "written as .csv"),
        (["alerts", "--state", "nowhere.db"], "there is no state file"),
        (["bench", "pairwise", "--data", "nowhere"], "no folder nowhere"),
        (["bench", "engine", "--data", "nowhere.csv"], "there is no file"),
    ],
)
def test_mistakes_end_with_an_explanation(arguments, message):
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
