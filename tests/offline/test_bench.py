"""Benchmarks on what is too small for them."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from stream_ccsd.cli.main import app


def test_a_file_without_a_window_is_refused_in_words(tmp_path):
    file = tmp_path / "ten.csv"
    rows = [f"C{i % 5},{i},{i + 1}.5,c,m,t{i}" for i in range(10)]
    file.write_text("\n".join(["account,time,amount,category,merchant,id", *rows]) + "\n")
    command = [
        sys.executable,
        "-m",
        "stream_ccsd",
        "bench",
        "engine",
        "--data",
        str(file),
    ]  # it takes a core for itself
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "too few transactions" in done.stderr
    assert "Traceback" not in done.stderr


def test_clusters_of_many_series_without_their_matrix():
    words = ["bench", "clusters", "--series", "150", "--compared", "120", "--length", "24", "--kinds", "3"]
    result = json.loads(CliRunner().invoke(app, [*words, "--json", "-"]).stdout)
    assert result["nmi"] > 0.8
    assert 0.999 < result["compared"]["loss_ratio"] < 1.2
    assert result["compared"]["all_pairs_nmi"] > 0.8
    assert "all pairs alone would take" in " ".join(CliRunner().invoke(app, words).output.split())
    refused = CliRunner().invoke(app, [*words, "--kinds", "121"])
    assert refused.exit_code == 2
    assert "as many series as kinds" in refused.output
