import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from offline.fraud import evaluate as evaluate_module
from offline.fraud import stream as stream_module
from offline.fraud.data import LabelledData, load_labelled
from offline.fraud.evaluate import evaluate_fraud
from offline.fraud.metrics import at_threshold, filled, judged, precision_at, ranking
from offline.fraud.paper import highest_score, run_paper
from offline.fraud.patterns import run_patterns
from offline.fraud.periods import run_periods
from offline.fraud.report import write_report
from offline.fraud.split import Split, split_accounts
from offline.fraud.stream import SCORES, run_stream
from replay.simulator import PATTERNS, simulate
from stream_ccsd.cli.main import app
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.library.index import build_index
from stream_ccsd.library.windows import library_windows
from stream_ccsd.score.divergence import build_change_law
from tests import naive
from tests.conftest import SMALL


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A labelled file, as a user would have it."""
    simulated = simulate(accounts=80, days=110, fraud_share=0.5, seed=11)
    path = tmp_path_factory.mktemp("data") / "stream.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "when", "amount", "category", "shop", "ref", "is_fraud"])
        for t in simulated.transactions:
            writer.writerow([t.account, t.time, t.amount, t.category, t.merchant, t.id, int(t.id in simulated.fraud)])
    return path


COLUMNS = "account=user,time=when,merchant=shop,id=ref"


@pytest.fixture(scope="module")
def data(table) -> LabelledData:
    from stream_ccsd.transaction import Schema

    return load_labelled(table, Schema(account="user", time="when", merchant="shop", id="ref"), "is_fraud")


# --- leak guards ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_sets_are_disjoint_and_complete(data, seed):
    accounts = data.fraud_accounts()
    split = split_accounts(accounts, seed)
    parts = [split.library, split.val_normal, split.val_fraud, split.test_normal, split.test_fraud]
    assert sum(map(len, parts)) == len(accounts) == len(frozenset().union(*parts))
    assert not any(accounts[a] for a in split.library | split.val_normal | split.test_normal)
    assert all(accounts[a] for a in split.val_fraud | split.test_fraud)
    assert split != split_accounts(accounts, seed + 1)


def test_an_account_in_two_sets_is_refused():
    one, two = frozenset("a"), frozenset("b")
    with pytest.raises(StreamCcsdError, match="in two sets"):
        Split(one, two, frozenset("c"), one, frozenset("d"))


def captured_scores(monkeypatch, data, split):
    """Every score of the stream protocol, as the protocol computes it."""
    seen = {}
    original = stream_module.score_stream

    def spy(*arguments, **options):
        seen["scored"] = original(*arguments, **options)
        return seen["scored"]

    monkeypatch.setattr(stream_module, "score_stream", spy)
    monkeypatch.setattr(stream_module, "split_accounts", lambda *_: split)
    run_stream(data, 0, SMALL, baselines=False)
    return seen["scored"].scores


def test_permuting_all_labels_changes_no_score(monkeypatch, data):
    """The split is held fixed: it may know labels, the scores may not."""
    split = split_accounts(data.fraud_accounts(), 0)
    before = captured_scores(monkeypatch, data, split)
    permuted = replace_labels(data, np.random.default_rng(0).permutation(data.fraud))
    after = captured_scores(monkeypatch, permuted, split)
    for name in SCORES:
        np.testing.assert_array_equal(before[name], after[name])
    assert not np.isnan(before["alert"]).all()


def replace_labels(data, fraud):
    return LabelledData(data.name, data.transactions, fraud, data.refused, data.fingerprint)


def test_the_model_knows_the_library_only(monkeypatch, data):
    """Other amounts in VAL and TEST, the same model: bandwidths, rarity, laws and calibration see LIB_NORMAL alone."""
    split = split_accounts(data.fraud_accounts(), 0)
    models = []
    original = stream_module.fit
    monkeypatch.setattr(stream_module, "fit", lambda *a: models.append(original(*a)) or models[-1])
    monkeypatch.setattr(stream_module, "split_accounts", lambda *_: split)
    run_stream(data, 0, SMALL, baselines=False)
    disturbed = [t if t.account in split.library else replace(t, amount=t.amount * 3 + 1) for t in data.transactions]
    run_stream(LabelledData(data.name, disturbed, data.fraud, 0, ""), 0, SMALL, baselines=False)
    assert models[0].version == models[1].version


# --- protocols --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 3])
def test_the_paper_score_is_the_naive_one(data, stride):
    settings = replace(SMALL, standardise="history")
    rows = data.rows_by_account()
    accounts = sorted(a for a, r in rows.items() if len(r) > 40)
    histories = [data.history(rows[a][:40]) for a in accounts[:6]]
    windows = library_windows(histories[1:], settings)
    index = build_index(windows, settings, 3.0)
    law = build_change_law(index, settings, 1.0)
    mine = histories[0]
    ref = [
        naive.window_score(
            windows,
            mine.amounts[: end + 1],
            mine.categories.tolist()[: end + 1],
            mine.merchants.tolist()[: end + 1],
            settings,
            3.0,
            1.0,
            known=mine.amounts,
            stride=stride,
        )
        for end in range(settings.window - 1, len(mine.amounts), stride)
    ]
    assert highest_score(index, law, mine, stride, settings.local_history) == pytest.approx(np.nanmax(ref), abs=1e-9)


def test_paper_protocol(data):
    result = run_paper(data, 0, SMALL, full_table=True)
    assert set(result["ablation"]) == {"no_rarity", "no_decay", "no_flag"}
    assert set(result["label_blind"]) == {"every_transaction", "library_stride"}
    for part in ("val", "test"):
        counts = [result[part][k] for k in ("tp", "fp", "fn", "tn")]
        assert sum(counts) == result["accounts"][f"{part}_normal"] + result["accounts"][f"{part}_fraud"]
    assert json.loads(json.dumps(result)) == result


def test_stream_protocol(data):
    result = run_stream(data, 0, SMALL, baselines=True)
    assert {"outcome", "habit", "divergence", "alert", "accumulated", "baselines"} == set(result["account"])
    assert {
        "amount",
        "deviation",
        "largest_change",
        "half_space_trees",
        "isolation_forest",
        "gradient_boosting",
    } == set(result["account"]["baselines"])
    assert result["account"]["baselines"]["gradient_boosting"]["supervised"]
    assert "val" not in result["account"]["baselines"]["gradient_boosting"]
    assert 0 < result["transaction"]["divergence"]["test_scored"]["share"] < 1
    assert result["operation"]["alerts"] >= 0
    json.dumps(result, allow_nan=False)


def test_split_by_time(data):
    result = run_periods(data, 0, SMALL, baselines=True)
    periods = result["periods"]
    assert periods["learn_until"] < periods["val_until"] < periods["test_from"]
    assert 0 <= result["account"]["alert"]["test"]["auc"] <= 1


def test_results_are_kept_and_reused(data, tmp_path, monkeypatch):
    first = evaluate_fraud(data, ["stream"], [0, 1], SMALL, baselines=False, cache=tmp_path)
    monkeypatch.setattr(evaluate_module, "_run_apart", lambda *_: pytest.fail("computed again"))
    assert evaluate_fraud(data, ["stream"], [0, 1], SMALL, baselines=False, cache=tmp_path) == first
    assert [r["seed"] for r in first["runs"]] == [0, 1]


def test_command_and_report(table, tmp_path):
    arguments = ["evaluate", "fraud", "--data", str(table), "--protocol", "both", "--columns", COLUMNS]
    arguments += ["--label", "is_fraud", "--no-cache", "--json", "-"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [r["protocol"] for r in result["runs"]] == ["paper", "stream"]
    result["sensitivity"] = [
        {"setting": "window K", "value": k, "val": {"auc": 0.5}, "test": {"auc": 0.5, "f1": 0.5}} for k in (1, 2)
    ]
    page = write_report(result, tmp_path / "report").read_text()
    assert page.count("data:image/png") >= 3
    assert "http" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--protocol", "magic"], "--protocol"),
        (["--seeds", "one"], "--seeds"),
        (["--columns", "accountuser"], "--columns"),
        (["--columns", "colour=user"], "unknown field colour"),
        (["--label", "nothing", "--columns", COLUMNS], "no label column 'nothing'"),
        (["--data", "nowhere.csv"], "cannot be read"),
    ],
)
def test_mistakes_are_explained(table, arguments, message):
    done = CliRunner().invoke(app, ["evaluate", "fraud", "--data", str(table), *arguments])
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)


# --- metrics ----------------------------------------------------------------------------------------------------


def test_metrics_by_hand():
    labels, scores = np.array([1, 0, 1, 0], bool), np.array([0.9, 0.8, 0.3, np.nan])
    assert ranking(labels, scores)["auc"] == 0.75
    found = at_threshold(labels, scores, 0.5)
    assert (found["tp"], found["fp"], found["fn"], found["tn"]) == (1, 1, 1, 1)
    assert found["f1"] == found["precision"] == found["recall"] == found["accuracy"] == 0.5
    assert precision_at(labels, scores, 1) == 1.0
    assert filled(scores)[3] < 0.3
    assert judged((labels, scores), (labels, scores))["threshold"] == 0.3


# --- the real thing ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def banksim(data_root) -> LabelledData:
    return load_labelled(data_root / "banksim" / "bs140513_032310.csv.xz")


def test_banksim_is_the_public_file(banksim):
    assert len(banksim.transactions) == 594_643
    assert banksim.fraud.sum() == 7_200
    assert len(banksim.fraud_accounts()) == 4_112
    assert banksim.refused == 0


def test_banksim_reproduces_the_paper(banksim):
    from stream_ccsd.settings import Settings

    result = run_paper(banksim, 0, Settings(sigma_x=9.649, sigma_y=1.016), full_table=False)
    sizes = ("library", "val_normal", "test_normal", "val_fraud", "test_fraud")
    assert [result["accounts"][n] for n in sizes] == [1793, 384, 384, 389, 722]
    assert 0.73 <= result["test"]["auc"] <= 0.79
    assert 0.83 <= result["test"]["f1"] <= 0.87


def test_banksim_on_a_stream_beats_what_was_asked(banksim):
    from stream_ccsd.settings import Settings

    result = run_stream(banksim, 0, Settings(), baselines=False)
    account, transaction = result["account"]["alert"]["test"], result["transaction"]["alert"]["test"]
    assert account["auc"] >= 0.95
    assert account["ap"] >= 0.975
    assert transaction["auc"] >= 0.99
    assert transaction["ap"] >= 0.81


def test_patterns_are_judged_one_by_one():
    found = run_patterns(60, 60, 0, SMALL)
    assert set(found["patterns"]) == set(PATTERNS)
    for one in found["patterns"].values():
        assert {"alert", "outcome", "habit", "amount", "isolation_forest"} <= one["transaction"].keys()
        assert "gradient_boosting" not in one["transaction"]  # it knows labels: a ceiling, not a rival
        assert all(0 <= m["auc"] <= 1 for m in one["account"].values())
    burst = found["patterns"]["rare merchants"]["transaction"]
    assert burst["alert"]["auc"] > burst["amount"]["auc"]
