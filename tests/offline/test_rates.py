import json

from typer.testing import CliRunner

from stream_ccsd.cli.main import app


def test_rates_are_told_beside_what_was_asked_for():
    done = CliRunner().invoke(app, ["evaluate", "rates", "--accounts", "30", "--seeds", "1", "--json", "-"])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(done.stdout)["runs"]
    assert run["accounts"] == 30
    assert run["transactions"] > 10_000
    assert [rate["nominal"] for rate in run["rates"]] == [1e-3, 1e-4]
    for rate in run["rates"]:
        # Who reaches the threshold may be alerted already; who alerts has reached it.
        assert 0 <= rate["alerted"] <= rate["reached"] < 0.1
    assert run["rates"][0]["reached"] > 0
