"""Benchmarks on what is too small for them."""

import subprocess
import sys


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
