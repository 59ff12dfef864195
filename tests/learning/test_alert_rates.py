"""Verdicts on alerts alone: transactions that nobody looked at are not known to be normal."""

import numpy as np
import pytest

from stream_ccsd.learning.alert_rates import shares_by_rarity, tail_by_shares
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.model.calibration import rarities
from stream_ccsd.verdict import Verdict
from tests.learning.simulated import learn_over

DAILY = Schedule(every=1.0, delay=3.0)


def reviewed(population, verdicts=(), until=np.inf):
    """Daily updates. Each alert gets a verdict half a day later, and so do frauds that follow a fraud of an account."""
    model, stream, fraud = population
    found = set()

    def review(result):
        t = result.transaction
        if result.alert and t.id in fraud:
            found.add(t.account)
        if not result.alert and (t.id not in fraud or t.account not in found):
            return None
        return Verdict(t.id, t.account, "fraud" if t.id in fraud else "normal", "desk", t.time + 0.5)

    return learn_over(model, DAILY, [t for t in stream if t.time < until], verdicts, review=review)


@pytest.fixture(scope="module")
def alerts_only(population):
    return reviewed(population)


def test_the_catch_at_the_budget_is_no_lower_than_without_learning(population, plain, alerts_only):
    model, _, fraud = population
    facts = alerts_only.learner.model.facts["lessons"]
    assert facts["silence"] == "unknown"
    assert facts["frauds"] > 100

    def over(results):
        return [r for r in results if r.score >= model.threshold]

    def caught(results):
        return sum(r.transaction.id in fraud for r in results)

    # As many reach the threshold, and as many of them are fraud as of the same number without learning.
    learnt = over(alerts_only.results)
    assert 0.8 * len(over(plain)) < len(learnt) < 1.25 * len(over(plain))
    assert caught(learnt) >= caught(sorted(plain, key=lambda r: -r.score)[: len(learnt)])
    assert caught(learnt) >= caught(over(plain))


def test_frauds_reported_without_an_alert_make_silence_count_as_normal(population, alerts_only):
    _, stream, fraud = population
    moment, first = 20.0, alerts_only.models[20.0]
    assert first.facts["lessons"]["silence"] == "unknown"
    missed = [t for t in stream if t.id in fraud and 10.0 < t.time < moment - 4.0]
    customers = [Verdict(t.id, t.account, "fraud", "bank", moment - 0.5, source="chargeback") for t in missed]
    reported = reviewed(population, customers, moment + 2.0)
    assert reported.models[moment].facts["lessons"]["silence"] == "normal"
    assert reported.models[moment].facts["lessons"]["shares"] == first.facts["lessons"]["shares"]


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_shares_of_all_keep_their_rarity(scale):
    """Whatever evidence becomes: as many transactions are as rare as before."""
    rng = np.random.default_rng(1)
    before = rng.exponential(size=20_000)
    shares = shares_by_rarity(before, np.ones(len(before)))
    after = scale * rng.exponential(size=20_000) ** 2
    tail = tail_by_shares(after, np.ones(len(after)), shares)
    rare = rarities(tail, after)
    for line in (1.0, 3.0, 5.0):
        assert (rare >= line).mean() == pytest.approx((before >= line).mean(), rel=0.15)
    # Beyond what was seen it goes on rising.
    assert np.diff(rarities(tail, np.array([1.0, 2.0, 3.0]) * after.max())).min() > 0


def test_rows_count_for_as_many_as_they_stand_for():
    rng = np.random.default_rng(2)
    values = rng.exponential(size=5_000)
    weight = rng.integers(1, 5, len(values)).astype(float)
    repeated = np.repeat(values, weight.astype(int))
    shares = shares_by_rarity(values, weight)
    assert shares == pytest.approx(shares_by_rarity(repeated, np.ones(len(repeated))), abs=0.2)
    tails = [tail_by_shares(v, w, shares) for v, w in ((values, weight), (repeated, np.ones(len(repeated))))]
    wanted = np.linspace(0.0, 12.0, 50)
    assert rarities(tails[0], wanted) == pytest.approx(rarities(tails[1], wanted), abs=0.5)
