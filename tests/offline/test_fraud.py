import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from offline import published
from offline.fraud import evaluate as evaluate_module
from offline.fraud import simulated as patterns_module
from offline.fraud import stream as stream_module
from offline.fraud.baselines import transaction_baselines, transaction_features
from offline.fraud.data import LabelledData, Split, load_labelled, split_accounts, split_half, split_unlabelled
from offline.fraud.evaluate import evaluate_fraud
from offline.fraud.metrics import at_threshold, filled, judged, precision_at, ranking
from offline.fraud.paper import highest_score, run_paper
from offline.fraud.report import cells, paper_table, pattern_table, ranking_table, write_report
from offline.fraud.simulated import run_patterns
from offline.fraud.stream import evaluated_scores, judge_kinds, run_periods, run_stream
from replay.run.fitting import population_settings, write_simulated
from replay.sources.simulator.population import FIELDS, PATTERNS, Population
from stream_ccsd.cli.main import app
from stream_ccsd.divergence.search.index import build_index
from stream_ccsd.divergence.search.windows import library_windows
from stream_ccsd.divergence.window_score import build_change_density
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.fields import declared
from stream_ccsd.scores import Score, register, unregister
from stream_ccsd.settings import Settings
from stream_ccsd.transaction import Guess
from tests import naive
from tests.conftest import SMALL
from tests.offline import pinned


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "stream.csv"
    pinned.write_stream(path)
    return path


COLUMNS = "account=user,time=when,merchant=shop,id=ref"


@pytest.fixture(scope="module")
def data(table) -> LabelledData:
    return load_labelled(table, pinned.SCHEMA, "is_fraud")


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


@pytest.mark.parametrize("seed", range(3))
def test_halves_are_disjoint_and_complete(data, seed):
    accounts = data.fraud_accounts()
    half, blind = split_half(accounts, seed), split_unlabelled(accounts, seed)
    for split in (half, blind):
        assert not split.val
        assert split.library | split.test == set(accounts.index)
        assert all(accounts[list(split.test_fraud)])
        assert not any(accounts[list(split.test_normal)])
    assert not any(accounts[list(half.library)])
    assert len(half.library) == round((~accounts).sum() / 2)
    assert blind.library == split_unlabelled(~accounts, seed).library
    assert any(accounts[list(blind.library)])


def test_where_every_account_has_fraud_only_transactions_are_ranked(data):
    rows = data.frame
    labels = data.fraud | ~rows["account"].duplicated().to_numpy()  # the first of each account
    result = run_stream(replace(data, fraud=labels), 0, SMALL, baselines=True, split_kind="unlabelled")
    assert result["account"]["alert"]["test"]["auc"] is None
    assert 0 < result["transaction"]["alert"]["test"]["auc"] < 1
    assert np.isnan(ranking_table([result]).loc[(False, "alert", False), "account AUC"])
    with pytest.raises(StreamCcsdError, match="0 to fit on"):
        split_half(replace(data, fraud=labels).fraud_accounts(), 0)
    with pytest.raises(StreamCcsdError, match="there are 0 without fraud"):
        split_accounts(replace(data, fraud=labels).fraud_accounts(), 0)


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
    monkeypatch.setattr(stream_module, "split_as", lambda *_: split)
    run_stream(data, 0, SMALL, baselines=False)
    return seen["scored"].scores


def test_without_labels_a_run_knows_none(monkeypatch, data):
    """Nothing is held fixed: what is fitted on, the model and every score are the same under any labels."""
    seen = []
    original = stream_module.score_stream
    monkeypatch.setattr(stream_module, "score_stream", lambda *a: seen.append((a[0], original(*a))) or seen[-1][1])
    settings = replace(SMALL, contamination=0.05)
    for labels in (data.fraud, np.random.default_rng(0).permutation(data.fraud)):
        run_stream(replace(data, fraud=labels), 0, settings, baselines=False, split_kind="unlabelled")
    (model, before), (again, after) = seen
    assert model.version == again.version
    pd.testing.assert_frame_equal(before.scores, after.scores, check_exact=True)
    assert before.alerts.keys() == after.alerts.keys()


def test_permuting_all_labels_changes_no_score(monkeypatch, data):
    """The split is held fixed: it may know labels, the scores may not."""
    split = split_accounts(data.fraud_accounts(), 0)
    before = captured_scores(monkeypatch, data, split)
    permuted = replace(data, fraud=np.random.default_rng(0).permutation(data.fraud))
    after = captured_scores(monkeypatch, permuted, split)
    for name in evaluated_scores():
        np.testing.assert_array_equal(before[name], after[name])
    assert not np.isnan(before["alert"]).all()


def test_the_model_knows_the_library_only(monkeypatch, data):
    """Other amounts in VAL and TEST: bandwidths, surprisal, densities and calibration see LIB_NORMAL alone."""
    split = split_accounts(data.fraud_accounts(), 0)
    models = []
    original = stream_module.fit
    monkeypatch.setattr(stream_module, "fit", lambda *a: models.append(original(*a)) or models[-1])
    monkeypatch.setattr(stream_module, "split_as", lambda *_: split)
    run_stream(data, 0, SMALL, baselines=False)
    disturbed = [t if t.account in split.library else replace(t, amount=t.amount * 3 + 1) for t in data.transactions]
    run_stream(replace(data, transactions=disturbed), 0, SMALL, baselines=False)
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
    density = build_change_density(index, settings, 1.0)
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
    assert highest_score(index, density, mine, stride, settings.local_history) == pytest.approx(
        np.nanmax(ref), abs=1e-9
    )


def test_paper_protocol(data):
    result = run_paper(data, 0, SMALL, full_table=True)
    assert set(result["ablation"]) == {"no_rarity", "no_decay", "no_flag"}
    assert set(result["label_blind"]) == {"every_transaction", "library_stride"}
    for part in ("val", "test"):
        counts = [result[part][k] for k in ("tp", "fp", "fn", "tn")]
        assert sum(counts) == result["accounts"][f"{part}_normal"] + result["accounts"][f"{part}_fraud"]
    assert json.loads(json.dumps(result)) == result
    pinned.check(result, "paper")


def test_stream_protocol(data):
    result = run_stream(data, 0, SMALL, baselines=True)
    pinned.check(result, "stream")
    assert {*evaluated_scores(), "baselines"} == set(result["account"])
    assert {
        "amount",
        "amount_in_category_rank",
        "amount_in_category_z",
        "amount_over_own_mean",
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


def test_a_score_from_outside_is_evaluated(data):
    register(Score("size", "How much was paid", compute=lambda outputs, events: np.log1p(events["amount"])))
    try:
        result = run_stream(data, 0, SMALL, baselines=False)
        table = ranking_table([result])
    finally:
        unregister("size")
    assert table.loc[(False, "size", False), "account AUC"] == result["account"]["size"]["test"]["auc"]
    assert table.loc[(False, "size", False), "transaction AP"] == result["transaction"]["size"]["test"]["ap"]


def test_a_stream_without_any_alert_has_results(data):
    result = run_stream(data, 0, replace(SMALL, alert_rate=1e-200), baselines=False)
    assert result["operation"]["alerts"] == 0
    assert result["operation"]["thresholds"]["budget"]["detected_share"] == 0
    assert result["operation"]["thresholds"]["budget"]["median_delay_time"] is None
    assert result["example"] is None
    json.dumps(result, allow_nan=False)


def test_delays_are_counted_from_the_first_fraud():
    rows = pd.DataFrame(
        {
            "account": ["a", "a", "b", "a", "b", "c", "a"],
            "time": [0.0, 1.0, 1.0, 2.0, 5.0, 6.0, 9.0],
            "fraud": [False, True, True, False, False, True, True],
        }
    )
    over = pd.Series([True, False, True, True, True, False, True])  # before a fraud it does not count
    assert stream_module._delays(rows, over) == {
        "detected_share": 2 / 3,
        "median_delay_transactions": 0.5,
        "median_delay_time": 0.5,
        "immediate_share": 0.5,
    }


def test_split_by_time(data):
    result = run_periods(data, 0, SMALL, baselines=True)
    pinned.check(result, "time")
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
    assert "http" not in re.sub('base64,[^"]*', "", page)  # a picture's bytes may spell anything
    for figure in (*published.FRAUD["full"]["val"].values(), *published.FRAUD["full"]["test"].values()):
        assert f"{figure:.3f}" in page


@pytest.fixture(scope="module")
def population_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("town") / "town.csv"
    write_simulated(Population(60, 80, fraud_share=0.5, seed=4), path)
    return path


def test_fields_and_kinds_travel_to_another_process(population_file, tmp_path):
    data = load_labelled(population_file, Guess(declared(FIELDS)), by="pattern")
    assert {*data.transactions[0].fields} == {"country", "device"}
    assert set(data.kinds[data.fraud]) == set(PATTERNS)
    assert set(data.kinds[~data.fraud]) == {""}
    data.save(tmp_path / "data.parquet")
    again = LabelledData.load(tmp_path / "data.parquet")
    assert again.transactions == data.transactions
    assert again.kinds.tolist() == data.kinds.tolist()
    plain = load_labelled(population_file)
    assert len({data.fingerprint, plain.fingerprint, load_labelled(population_file, by="pattern").fingerprint}) == 3


def test_any_file_with_its_own_fields_and_kinds(population_file, tmp_path):
    """Half of the normal accounts fitted, everything else streamed: what a user asks of a file of their own."""
    target = tmp_path / "result.json"
    arguments = ["evaluate", "fraud", "--data", str(population_file), "--split", "half", "--by", "pattern"]
    arguments += ["--no-cache", "--field", "country:category", "--field", "device:category", "--time-unit", "days"]
    arguments += ["--time-origin", "2026-01-05", "--no-divergence", "--set", "window=8", "--json", str(target)]
    done = CliRunner().invoke(app, [*arguments, "--report", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (run,) = json.loads(target.read_text())["runs"]
    assert (run["split"], run["fields"], run["fitted"]["fraud"]) == ("half", list(FIELDS), 0)
    for level in ("transaction", "account"):
        assert {"evidence", "takeover", "alert", "baselines"} <= run[level].keys()
        assert "divergence" not in run[level]
        assert run[level]["alert"]["test"]["auc"] > run[level]["baselines"]["amount"]["test"]["auc"]
    assert {"country", "device"} <= {name.partition(" ")[0] for name in run["gains"]}
    assert set(run["kinds"]) == set(PATTERNS)
    kind = run["kinds"]["rare merchants"]
    assert kind["transaction"]["alert"]["auc"] > 0.9
    assert kind["account"].keys() == {*kind["transaction"], "accumulated", "deviation"}
    assert "rare merchants" in (tmp_path / "report.html").read_text()


def test_kinds_are_judged_against_everything_that_is_no_fraud():
    rows = pd.DataFrame(
        {"account": list("aabbcc"), "fraud": [False, True, True, False, False, False]}, index=range(2, 8)
    )
    kinds = np.array(["", "", "", "x", "y", "", "", ""], object)
    scores = pd.DataFrame({"s": [0, 9, 1, 2, 3, 0], "accumulated": 0}, dtype=float, index=rows.index)
    kinds = judge_kinds(rows, kinds, scores, scores.groupby(rows["account"]).max())
    assert {name: kind["transaction"]["s"]["auc"] for name, kind in kinds.items()} == {"x": 1.0, "y": 0.5}
    assert {name: kind["account"]["s"]["auc"] for name, kind in kinds.items()} == {"x": 1.0, "y": 0.0}
    assert kinds["x"]["transactions"] == kinds["x"]["accounts"] == 1


def test_patterns_are_shown_without_and_with_fields(monkeypatch):
    ranks = {"alert": {"auc": 0.75, "ap": 0.5}, "amount": {"auc": 0.25, "ap": None}}
    seen = []

    def run(accounts, days, seed, settings, progress):
        seen.append((seed, settings))
        return {"patterns": {name: {"account": ranks, "transaction": ranks} for name in PATTERNS}}

    monkeypatch.setattr(patterns_module, "run_patterns", run)
    done = CliRunner().invoke(app, ["evaluate", "fraud", "--seeds", "3,4", "--no-divergence"])
    assert done.exit_code == 0, done.output
    plain = Settings(divergence=False)
    assert seen == [(seed, s) for s in (plain, population_settings(plain)) for seed in (3, 4)]
    assert done.output.count("new regime") == 6
    result = json.loads(CliRunner().invoke(app, ["evaluate", "fraud", "--json", "-"]).stdout)
    assert [len(result[key]) for key in ("runs", "with_fields")] == [1, 1]


def test_what_only_a_file_has_is_not_ignored():
    done = CliRunner().invoke(app, ["evaluate", "fraud", "--split", "half", "--field", "a:number"])
    assert done.exit_code == 1
    assert "--split, --field need --data" in done.output + str(done.exception)


def test_without_pandas_the_command_says_what_to_install():
    blocked = "import sys; sys.modules['pandas'] = None; from stream_ccsd.__main__ import run; run()"
    for what in ("fraud", "clustering"):
        done = subprocess.run(
            [sys.executable, "-c", blocked, "evaluate", what], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "needs pandas" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--protocol", "magic"], "--protocol"),
        (["--seeds", "one"], "--seeds"),
        (["--columns", "accountuser"], "--columns"),
        (["--columns", "colour=user"], "unknown field colour"),
        (["--label", "nothing", "--columns", COLUMNS], "no label column 'nothing'"),
        (["--data", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--split", "thirds"], "--split"),
        (["--split", "half", "--protocol", "both"], "own five sets"),
        (["--split", "half", "--protocol", "time", "--label", "is_fraud", "--columns", COLUMNS], "divides no accounts"),
        (["--field", "country"], "NAME:KIND"),
        (["--field", "country:category", "--columns", COLUMNS], "no column named country"),
        (["--by", "scenario", "--label", "is_fraud", "--columns", COLUMNS], "no column 'scenario'"),
        (["--by", "shop", "--label", "is_fraud", "--columns", COLUMNS], "does not name kinds of fraud"),
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
    figures = at_threshold(labels, scores, 0.5)
    assert [figures[name] for name in ("tp", "fp", "fn", "tn")] == [1, 1, 1, 1]
    assert figures["f1"] == figures["precision"] == figures["recall"] == figures["accuracy"] == 0.5
    assert precision_at(labels, scores, 1) == 1.0
    assert filled(scores)[3] < 0.3
    assert ranking(np.array([1, 0], bool), np.array([-2.0, np.nan]))["auc"] == 1.0  # scores may lie below 0
    assert judged((labels, scores), (labels, scores))["threshold"] == 0.3


def test_features_know_the_past_of_their_account_only(data):
    """Against the plain loop: what is known of an account is what came before."""
    last = {}
    names = {kind: sorted({getattr(t, kind) for t in data.transactions}) for kind in ("category", "merchant")}
    expected = []
    for t in data.transactions:
        previous, total, count = last.get(t.account, (t.amount, 0.0, 0))
        mean = total / count if count else t.amount
        codes = [names[kind].index(getattr(t, kind)) for kind in names]
        log = np.log1p(t.amount)
        expected.append([log, abs(t.amount - previous), *codes, log - np.log1p(mean)])
        last[t.account] = (t.amount, total + t.amount, count + 1)
    np.testing.assert_array_equal(transaction_features(data), expected)


def test_amounts_within_their_category_and_against_the_account(data):
    """By hand: categories as the fitted rows have them."""
    rows = data.frame
    library = rows["account"].isin(sorted(set(rows["account"]))[::2]).to_numpy()
    scores = transaction_baselines(data, library, ~library, np.zeros(len(rows), bool), 0)
    for name, streamed in rows[~library].groupby("category"):
        fitted = rows[library & (rows["category"] == name).to_numpy()]["amount"]
        if len(fitted) < 10:
            continue
        log = np.log1p(fitted)
        own = scores.loc[streamed.index]
        z = (np.log1p(streamed["amount"]) - log.mean()) / log.std()
        np.testing.assert_allclose(own["amount_in_category_z"], z)
        rank = [(fitted < amount).mean() for amount in streamed["amount"]]
        np.testing.assert_allclose(own["amount_in_category_rank"], rank)
    np.testing.assert_array_equal(scores["amount_over_own_mean"], transaction_features(data)[~library, 4])


# --- tables -----------------------------------------------------------------------------------------------------


def run_of(seed, auc, **baselines):
    figures = {"auc": auc, "ap": auc / 2}
    level = {
        "baselines": {n: {"supervised": True, "test": {"auc": a, "ap": a}} for n, a in baselines.items()},
        "alert": {"test": {**figures, "f1": auc}},
    }
    return {"seed": seed, "account": level, "transaction": {"baselines": {}, "alert": {"test": figures}}}


def test_rankings_are_means_over_runs_and_empty_where_there_is_nothing():
    table = ranking_table([run_of(0, 0.25, forest=0.5), run_of(1, 0.75, forest=1.0)])
    assert list(table.index) == [(False, "alert", False), (True, "forest", True)]
    columns = ["account AUC", "account AP", "account F1", "transaction AUC", "transaction F1"]
    assert [cells(row) for row in table[columns].to_numpy()] == [
        ["0.500", "0.250", "0.500", "0.500", ""],
        ["0.750", "0.750", "", "", ""],
    ]


def test_the_papers_row_stands_below_ours():
    part = {"auc": 0.5, "ap": 0.5, "accuracy": 0.5, "precision": 0.5, "recall": 0.5, "f1": 0.5}
    runs = [
        {"val": part, "test": {**part, "auc": auc}, "ablation": {"no_flag": {"val": part, "test": part}}}
        for auc in (0.2, 0.4)
    ]
    table = paper_table(runs)
    assert list(table.index) == ["full", "no_flag", "the paper's full"]
    assert table.loc["full", "TEST AUC"] == pytest.approx(0.3)
    assert table.loc["the paper's full", "F1"] == published.FRAUD["full"]["test"]["f1"]


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
    settings = Settings(sigma_x=published.FRAUD_SIGMA_X, sigma_y=published.FRAUD_SIGMA_Y)
    result = run_paper(banksim, 0, settings, full_table=False)
    sizes = ("library", "val_normal", "test_normal", "val_fraud", "test_fraud")
    assert [result["accounts"][n] for n in sizes] == [1793, 384, 384, 389, 722]
    for metric in ("auc", "ap", "f1"):
        assert result["test"][metric] == pytest.approx(published.FRAUD["full"]["test"][metric], abs=0.03)


def test_banksim_on_a_stream_beats_what_was_asked(banksim):
    result = run_stream(banksim, 0, Settings(), baselines=False)
    account, transaction = result["account"]["alert"]["test"], result["transaction"]["alert"]["test"]
    assert account["auc"] >= 0.95
    assert account["ap"] >= 0.975
    assert transaction["auc"] >= 0.99
    assert transaction["ap"] >= 0.85


def test_patterns_are_judged_one_by_one():
    result = run_patterns(60, 60, 0, SMALL)
    pinned.check(result, "patterns")
    assert result["fields"] == []
    assert set(result["patterns"]) == set(PATTERNS)
    for one in result["patterns"].values():
        assert {"alert", "evidence", "takeover", "amount", "isolation_forest"} <= one["transaction"].keys()
        assert "gradient_boosting" not in one["transaction"]  # it knows labels: a ceiling, not a competitor
        assert all(0 <= m["auc"] <= 1 for m in one["account"].values())
    burst = result["patterns"]["rare merchants"]["transaction"]
    assert burst["alert"]["auc"] > burst["amount"]["auc"]
    table = pattern_table([result], "transaction", "auc")
    assert list(table) == list(PATTERNS)
    assert table.loc["baseline amount", "rare merchants"] == burst["amount"]["auc"]
    assert table.loc["alert", "rare merchants"] == burst["alert"]["auc"]
