"""What a cluster needs follows from what was measured, and the two are told apart."""

import json

import pytest
from typer.testing import CliRunner

from offline.bench.sizing import ACCOUNTS, RATES, Assumed, Measured, multiplied, sizing
from stream_ccsd.cli.main import app

MEASURED = Measured(
    transactions=1000,
    accounts=100,
    states_per_transaction=0.9,
    cpu_us_per_transaction=100.0,
    worker_mb=500.0,
    state_bytes_per_account=4000.0,
    store_bytes_per_account=5000.0,
    transaction_bytes=150.0,
    score_bytes=550.0,
    alert_bytes_per_transaction=50.0,
)


def test_what_is_multiplied_out_can_be_done_by_hand():
    assumed = Assumed(
        busy=0.5, partitions_a_worker=2, fewest_partitions=4, uncompacted_hours=1, cache_mb_a_partition=50
    )
    row = multiplied(MEASURED, assumed, 10_000, 1_000_000)
    assert row == {
        "rate": 10_000,
        "accounts": 1_000_000,
        "cores": 2,  # a second of work a second, on cores that are half busy
        "partitions": 4,
        "memory_gb": pytest.approx(2 * 0.5 + 4 * 0.05),
        "store_gb": pytest.approx(5.0),
        "changelog_gb": pytest.approx(4.0 + 10_000 * 3600 * 4000 / 1e9),
        "topics_gb_a_day": pytest.approx(10_000 * 86_400 * 750 / 1e9),
    }
    least = multiplied(MEASURED, assumed, 1, 1)
    assert (least["cores"], least["partitions"]) == (1, 4)


def test_every_rate_and_number_of_accounts_is_there():
    result = sizing(MEASURED)
    assert [(r["rate"], r["accounts"]) for r in result["multiplied"]] == [(r, a) for r in RATES for a in ACCOUNTS]
    for name in ("cores", "memory_gb", "topics_gb_a_day"):  # these follow the rate, disks the accounts
        assert len({row[name] for row in result["multiplied"]}) == len(RATES)
    json.dumps(result)


@pytest.mark.parametrize("arguments", [["--broker", "nowhere"], ["--accounts", "1"], ["--json", "/nowhere/x.json"]])
def test_what_cannot_be_measured_is_refused_at_once(arguments):
    assert CliRunner().invoke(app, ["bench", "sizing", *arguments]).exit_code != 0
