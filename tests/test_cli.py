import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from stream_ccsd.cli.main import app

runner = CliRunner()


COMMANDS = [[], ["bench"], ["bench", "pairwise", "--help"], ["bench", "engine", "--help"], ["--help"]]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_help(arguments):
    result = runner.invoke(app, arguments)
    assert "Usage" in result.output


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
    arguments += ["--json", str(target)]
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(target.read_text())
    numbers = (
        "events_per_s batch_events_per_s naive_events_per_s hst_events_per_s p50_us p99_us "
        "first_score_cold_s first_score_warm_s bytes_per_account"
    )
    assert all(result[name] > 0 for name in numbers.split())
    assert result["library"][0]["recall"] == 1.0
    assert {"accounts", "rss_mb", "events_per_s"} <= result["accounts"][0].keys()


# In a process of its own: the benchmark binds itself to one core.
RUN = "import sys; from stream_ccsd.cli.main import run; sys.argv[0] = 'stream-ccsd'; run()"


@pytest.mark.parametrize("arguments", [["replay", "--seed", "-1"], ["replay", "--customers", "1"]])
def test_numbers_out_of_range_are_usage_errors(arguments):
    assert runner.invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "--json", "nowhere/result.json"], "cannot write the result"),
        (["replay", "--json", ""], "cannot write the result"),
        (["replay", "--set", "alert_rate=2"], "alert_rate is 2"),
        (["replay", "--set", "alertrate=2"], "unknown setting"),
        (["replay", "--speed", "quick"], "none of: max"),
        (["replay", "--resume"], "--resume needs --state"),
        (["replay", "--label", "fraud"], "need --data"),
        (["replay", "--data", "README.md"], "stream-ccsd fit --data README.md"),
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
