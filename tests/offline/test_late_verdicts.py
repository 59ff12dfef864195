"""Verdicts that come late: who says what when, what is known at a moment, and how it is judged."""

import json
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from offline import published
from offline.fraud import verdicts
from offline.fraud.data import LabelledData
from offline.fraud.days import Days
from offline.fraud.investigators import Investigators, Mistakes, Queue
from offline.fraud.metrics import card_precisions
from offline.fraud.raw_features import WINDOWS, DelayedRates, raw_features, trailing_sums
from offline.fraud.scoring import EngineScorer, LearningScorer, Replayed, begin, run_days
from offline.fraud.supervised import Boosting, Forest
from offline.fraud.verdicts import Plan, run_verdicts
from replay.run.fitting import write_simulated
from replay.sources.simulator.population import Population, simulate
from stream_ccsd.cli.main import app
from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.learning.learner import Learner
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.transaction import Transaction
from tests.conftest import SMALL

SETTINGS = replace(SMALL, divergence=False, time_unit="days")


def labelled(transactions, fraud, name="stream") -> LabelledData:
    return LabelledData(name, list(transactions), np.array(fraud, bool), 0, "fingerprint")


@pytest.fixture(scope="module")
def data() -> LabelledData:
    stream = simulate(accounts=40, days=60, fraud_share=0.4, seed=5)
    return labelled(stream.transactions, [t.id in stream.fraud for t in stream.transactions])


@pytest.fixture(scope="module")
def days(data) -> Days:
    return Days.of(data, SETTINGS)


def with_labels(days, fraud) -> Days:
    return replace(days, data=replace(days.data, fraud=fraud))


# --- metrics ----------------------------------------------------------------------------------------------------


def naive_card_precisions(day, card, fraud, scores, count):
    found, precisions = [], {}
    for today in sorted(set(day)):
        rows = [i for i in range(len(day)) if day[i] == today and card[i] not in found]
        highest = {c: max(scores[i] for i in rows if card[i] == c) for c in sorted({card[i] for i in rows})}
        chosen = sorted(highest, key=lambda c: -highest[c])[:count]
        caught = [c for c in chosen if any(fraud[i] for i in rows if card[i] == c)]
        precisions[today] = len(caught) / count
        found += caught
    return precisions


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 2.0])),
        min_size=1,
        max_size=40,
    ),
    st.integers(1, 4),
)
def test_card_precision_is_the_plain_one(rows, count):
    rows = sorted(rows, key=lambda row: row[0])
    day, card, fraud, scores = map(np.array, zip(*rows, strict=True))
    mine = card_precisions(day, card, fraud, scores.astype(float), count)
    assert mine == naive_card_precisions(day.tolist(), card.tolist(), fraud.tolist(), scores.tolist(), count)


def test_the_handbooks_test_days_have_as_many_transactions_as_it_says(data_root):
    """On its own file; of what comes before its training week only the first row, so that days have their numbers."""
    path = data_root / "handbook" / "transactions.csv.xz"
    if not path.exists():
        pytest.skip("no handbook/ in the data folder")
    table = pd.read_csv(path, dtype={"account": str, "merchant": str})
    day = table["time"] // 86_400
    table = table[(table.index == 0) | ((day >= verdicts.TRAINED[0]) & (day <= verdicts.TESTED[-1]))]
    columns = zip(table["account"], table["time"].astype(float), table["amount"], table["merchant"], strict=True)
    rows = [Transaction(account, time, amount, "", merchant, "x") for account, time, amount, merchant in columns]
    settings = replace(SETTINGS, time_unit="seconds", time_origin=verdicts.ORIGIN)
    days = Days.of(labelled(rows, table["fraud"].astype(bool)), settings)
    tested = verdicts.tested_rows(days)
    assert (tested.sum(), days.fraud[tested].sum()) == (58_264, 385)


def test_a_stream_that_does_not_reach_the_handbooks_days_is_refused(days):
    with pytest.raises(StreamCcsdError, match="ends with day 59"):
        verdicts.tested_rows(days)


# --- the queue and the investigators ----------------------------------------------------------------------------


def test_found_cards_leave_the_queue_for_two_weeks():
    queue = Queue(budget=2)
    cards, scores = np.array([3, 1, 2, 3]), np.array([0.5, 2.0, 1.0, np.nan])
    assert queue.choose(10, cards, scores).tolist() == [1, 2]
    queue.found(10, [1])
    for day in range(11, 25):
        assert queue.choose(day, cards, scores).tolist() == [2, 3]
    assert queue.choose(25, cards, scores).tolist() == [1, 2]


def test_every_answer_comes_once_and_not_before_its_time(days):
    rng = np.random.default_rng(0)
    scores = rng.random(len(days.time))
    investigators = Investigators(days, 10.0, Queue(3))
    heard, moments = [], {}
    for day, rows in days:
        for moment in (days.starts(day), days.starts(day) + 0.5):
            news = investigators.news(moment)
            assert (investigators.known[news] <= moment).all()
            assert (np.diff(investigators.known[news]) >= 0).all()
            heard += news.tolist()
            moments |= dict.fromkeys(news.tolist(), moment)
        investigators.close(day, rows, scores[rows])
    heard += investigators.news(days.time[-1] + 11).tolist()
    assert sorted(heard) == list(range(len(days.time)))
    looked = np.flatnonzero(investigators.looked_at)
    assert 0 < len(looked) < len(heard)
    assert all(moments[i] == days.starts(int(days.day[i]) + 1) for i in looked if i in moments)
    assert all(worked.cards == 3 for worked in investigators.worked)
    for worked in investigators.worked:
        own = investigators.looked_at & (days.day == worked.day)
        assert worked.fraud == len(set(days.account[own & days.fraud].tolist()))
    # Somebody speaks of what was looked at, and of frauds; of all others there is silence.
    spoken = investigators.spoken(np.arange(len(days.time)))
    np.testing.assert_array_equal(spoken, np.flatnonzero(investigators.looked_at | days.fraud))


def test_a_share_of_what_is_said_is_wrong(days):
    share = 0.3
    investigators = Investigators(days, 7.0, mistakes=Mistakes(share, seed=1))
    wrong = investigators.told != days.fraud
    count = days.fraud.sum()
    assert wrong[days.fraud].sum() == pytest.approx(share * count, abs=4 * np.sqrt(count))
    assert wrong[~days.fraud].sum() == pytest.approx(share * count, abs=4 * np.sqrt(count))
    assert set(np.flatnonzero(wrong)) <= set(investigators.spoken(np.arange(len(wrong))))
    again = Investigators(days, 7.0, mistakes=Mistakes(share, seed=1))
    np.testing.assert_array_equal(again.told, investigators.told)
    assert (Investigators(days, 7.0).told == days.fraud).all()


def test_all_that_is_said_of_a_merchant_is_wrong_for_half_of_the_stream(days):
    merchant = Counter(t.merchant for t in days.data.transactions).most_common(1)[0][0]
    wrong = Investigators(days, 7.0, mistakes=Mistakes(merchant=merchant)).told != days.fraud
    own = np.array([t.merchant == merchant for t in days.data.transactions])
    middle = (days.fitted_until + days.time[-1]) / 2
    np.testing.assert_array_equal(wrong, own & (days.time >= days.fitted_until) & (days.time < middle))
    with pytest.raises(StreamCcsdError, match="no merchant 'nobody'"):
        Investigators(days, 7.0, mistakes=Mistakes(merchant="nobody"))


# --- features ---------------------------------------------------------------------------------------------------


def test_trailing_sums_are_the_plain_ones():
    rng = np.random.default_rng(2)
    key, time = rng.integers(0, 4, 300), np.sort(rng.integers(0, 60, 300)).astype(float)
    value = rng.random(300)
    count, total = trailing_sums(key, time, value, 7.0)
    for i in range(len(key)):
        own = [j for j in range(i + 1) if key[j] == key[i] and time[j] > time[i] - 7.0]
        assert count[i] == len(own)
        assert total[i] == pytest.approx(sum(value[own]))


@pytest.mark.parametrize("queue", [None, 3])
def test_delayed_rates_are_the_plain_ones(days, queue):
    """Row by row: of the merchant's transactions those whose label came within the window before the day."""
    investigators = Investigators(days, 5.0, queue and Queue(queue))
    rates = DelayedRates(int(days.merchant.max()) + 1)
    scores = np.random.default_rng(0).random(len(days.time))
    made = np.empty((len(days.time), 2 * len(WINDOWS)))
    told = {}
    for day, rows in days:
        news = investigators.news(days.starts(day))
        rates.advance(day, days.merchant[news], investigators.told[news])
        told |= dict.fromkeys(news.tolist(), day)
        made[rows] = rates.features(days.merchant[rows])
        investigators.close(day, rows, scores[rows])
    for i in range(0, len(days.time), 37):
        own = [j for j in told if days.merchant[j] == days.merchant[i]]
        for place, window in enumerate(WINDOWS):
            known = [j for j in own if days.day[i] - window < told[j] <= days.day[i]]
            share = np.mean(days.fraud[known]) if known else 0.0
            assert made[i, 2 * place : 2 * place + 2] == pytest.approx([len(known), share])
    if queue is None:  # the same, by when labels are known
        assert all(np.ceil(days.time[j] + 5.0) <= day for j, day in told.items())


def test_raw_features_know_no_label_and_nothing_later(days):
    features = raw_features(days, SETTINGS)
    assert {"amount", "hour", "weekday", "gap", "account_mean_7", "merchant_count_30", "category"} <= {*features}
    pd.testing.assert_frame_equal(features, raw_features(with_labels(days, ~days.fraud), SETTINGS))
    cut = len(days.time) // 2
    early = replace(
        days, data=replace(days.data, transactions=days.data.transactions[:cut]), time=days.time[:cut].copy()
    )
    pd.testing.assert_frame_equal(features[:cut], raw_features(early, SETTINGS))


# --- nothing is known before its time ---------------------------------------------------------------------------


def scorers(days, mode, only=None):
    """Every scorer of the protocol by name, or one of them, each with its own investigators."""
    delay = 7.0 if mode == "all" else 12.0
    raw = cache(lambda: raw_features(days, SETTINGS).to_numpy())

    def learning(investigators):
        begun = begin(days, delay, SETTINGS)
        return LearningScorer(
            days, begun, investigators, Learner(begun.model, Schedule(1.0, delay)), 1.0, first_part=True
        )

    makers = {
        "learnt": learning,
        "boosting": lambda investigators: Boosting(days, investigators, raw()),
        "arf": lambda investigators: Forest(days, investigators, raw()),
    }
    for name, make in makers.items() if only is None else [(only, makers[only])]:
        investigators = Investigators(days, delay, Queue(4) if mode == "alerted" else None)
        yield name, investigators, make(investigators)


@pytest.mark.parametrize("mode", ["all", "alerted"])
def test_no_score_knows_a_label_before_its_time(days, mode):
    """Labels that have not come by a moment are turned round: no score up to that moment changes a bit."""
    moment = days.starts(40) + 0.5 * days.length  # not where a day begins: a label up to a day early must be noticed
    for (name, investigators, scorer), before in [
        (made, run_days(days, made[1], made[2])) for made in scorers(days, mode)
    ]:
        unknown = investigators.known >= moment
        assert not isinstance(scorer, EngineScorer) or scorer.lessons > 20, name
        turned = with_labels(days, days.fraud ^ unknown)
        (other,) = scorers(turned, mode, name)
        after = run_days(turned, other[1], other[2])
        early = (days.time >= days.fitted_until) & (days.time < moment)
        np.testing.assert_array_equal(before[early], after[early], err_msg=name)
        late = days.time >= moment + 8.0
        assert (before[late] != after[late]).any(), name


def test_scores_that_were_kept_lead_to_the_same_investigations(days):
    scores = np.random.default_rng(0).random(len(days.time))
    first, again = (Investigators(days, 12.0, Queue(4)) for _ in range(2))
    kept = run_days(days, first, Replayed(scores))
    run_days(days, again, Replayed(kept))
    assert first.worked == again.worked
    assert np.isnan(kept[: days.begin]).all()


def test_accounts_with_known_fraud_are_not_fitted_on(data):
    labels = data.fraud.copy()
    labels[0] = True
    days = Days.of(replace(data, fraud=labels), SETTINGS)
    known, unknown = begin(days, 7.0, SETTINGS), begin(days, 1000.0, SETTINGS)
    assert known.facts["left_out"] > 0 == unknown.facts["left_out"]
    first = days.data.transactions[: days.begin]
    assert unknown.facts["transactions"] == len(first) == days.begin
    assert known.facts["transactions"] == sum(
        t.account
        not in {
            first[i].account
            for i in np.flatnonzero(labels[: days.begin] & (days.time[: days.begin] + 7.0 <= days.fitted_until))
        }
        for t in first
    )
    assert known.states.keys() == {t.account for t in first}


# --- runs and the command ---------------------------------------------------------------------------------------


def test_a_run_without_baselines_is_judged_by_week(data):
    plan = Plan(delay=5.0, label_delay=12.0, budget=4, baselines=False, days=(35, 45))
    runs = run_verdicts(data, SETTINGS, plan)
    assert [run["mode"] for run in runs] == ["all", "alerted"]
    for run in runs:
        weeks = run["weeks"]
        assert run["baselines"] == {}
        assert [week["from"] for week in weeks if week["judged"]] == list(range(31, 60, 7))
        assert sum(week["frauds"] for week in weeks if week["judged"]) == run["judged"]["frauds"]
        assert run["days"]["from"] == 35
        assert (run["precision"] is None) == (run["mode"] == "all")
    json.dumps(runs, allow_nan=False)


@pytest.fixture(scope="module")
def population_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("town") / "town.csv"
    write_simulated(Population(50, 60, fraud_share=0.4, seed=4), path)
    return path


def run_command(path, *arguments):
    given = [
        "evaluate",
        "fraud",
        "--data",
        str(path),
        "--protocol",
        "verdicts",
        "--time-unit",
        "days",
        "--set",
        "window=8",
    ]
    return CliRunner().invoke(app, [*given, *arguments])


def test_the_command_writes_what_programs_read(population_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ["--delay", "5d", "--budget", "5/day", "--label-delay", "15d", "--field", "country:category"]
    done = run_command(population_file, *arguments, "--days", "31-50", "--json", "-")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["protocol"] == "verdicts"
    assert result["settings"]["divergence"] is False
    everything, alerted = result["runs"]
    assert (everything["mode"], everything["delay"]) == ("all", 5.0)
    assert (alerted["mode"], alerted["delay"], alerted["budget"]) == ("alerted", 15.0, 5)
    for run in result["runs"]:
        for figures in (run, run["days"], *run["weeks"]):
            assert {"auc", "ap", "cp100", "precision", "baselines"} <= figures.keys()
            assert figures["baselines"].keys() == {"label-free", "label-free evidence", "arf", "boosting"}
        assert {"auc", "ap", "cp100"} <= run["baselines"]["arf"].keys()
        assert {"week", "from"} <= run["weeks"][0].keys()
        assert run["learner"]["lessons"] >= 40
        assert run["learner"]["verdicts"]["fraud"] > 0
    kept = sorted((tmp_path / "stream-ccsd").iterdir())
    assert len(kept) == 4
    shown = run_command(population_file, *arguments)
    assert shown.exit_code == 0, shown.output
    assert sorted((tmp_path / "stream-ccsd").iterdir()) == kept
    for word in ("learnt", "label-free", "boosting", "alerted: 5 cards a day looked at", "by week"):
        assert word in shown.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--delay", "soon"], "expected a length of time"),
        (["--delay", "0"], "above 0"),
        (["--budget", "many"], "100/day"),
        (["--label-delay", "1h"], "before investigators look"),
        (["--days", "9-3"], "94-135"),
        (["--wrong", "1.5"], "--wrong"),
        (["--modes", "some"], "--modes"),
        (["--learn", "often"], "expected a length of time"),
        (["--seeds", "1,2"], "one seed"),
        (["--split", "half", "--no-trees"], "--split, --trees mean nothing to --protocol verdicts"),
        (["--wrong-merchant", "nobody"], "no merchant 'nobody'"),
        (["--protocol", "stream", "--budget", "5"], "--budget need --protocol verdicts"),
        (["--protocol", "handbook", "--budget", "5"], "--budget mean nothing to --protocol handbook"),
        (["--protocol", "handbook"], "ends with day 59"),
        (["--time-unit", "number", "--delay", "7d"], "have no unit"),
    ],
)
def test_mistakes_are_explained(population_file, arguments, message):
    done = run_command(population_file, *arguments)
    assert done.exit_code != 0
    assert message in " ".join((done.output + str(done.exception)).split())


def test_verdicts_need_a_file():
    done = CliRunner().invoke(app, ["evaluate", "fraud", "--protocol", "verdicts"])
    assert "needs --data" in done.output + str(done.exception)


def test_the_handbooks_figures_are_as_published():
    assert published.HANDBOOK["random forest"] == {"auc": 0.867, "ap": 0.658, "cp100": 0.287}
    assert published.HANDBOOK["XGBoost, tuned"]["cp100"] == 0.303
