"""Reviewers whose verdicts stand out."""

from stream_ccsd.learning.reviewers import standing_out
from stream_ccsd.verdict import Verdict


def said(who, numbers, frauds, time=1.0):
    return [Verdict(f"x{i}", "C1", "fraud" if i in frauds else "normal", who, time) for i in numbers]


TRUE = set(range(0, 300, 10))  # one in ten


def by_name(verdicts):
    return {r.who: r for r in standing_out(verdicts)}


def test_who_calls_half_of_everything_fraud_stands_out():
    honest = [*said("ann", range(150), TRUE), *said("bob", range(150, 300), TRUE)]
    found = by_name([*honest, *said("eve", range(300, 360), set(range(300, 330)))])
    assert [who for who, r in found.items() if r.stands_out] == ["eve"]
    assert found["eve"].deviation > 5
    assert (found["eve"].judged, found["eve"].frauds) == (60, 30)
    assert (found["eve"].others_judged, found["eve"].others_frauds) == (300, 30)


def test_who_contradicts_two_others_stands_out_and_they_do_not():
    everybody = [*said("ann", range(100), TRUE), *said("bob", range(100), TRUE)]
    lies = {i for i in range(100) if i not in TRUE and i % 9 == 0}
    hides = TRUE - set(range(0, 100, 20))
    found = by_name([*everybody, *said("eve", range(100), lies | hides)])
    assert found["eve"].stands_out
    assert (found["eve"].shared, found["eve"].against) == (100, len(lies) + len(TRUE & set(range(0, 100, 20))))
    assert not found["ann"].stands_out
    assert not found["bob"].stands_out
    assert standing_out([*everybody, *said("eve", range(100), lies | hides)])[0].who == "eve"


def test_newest_verdicts_count_and_unsure_ones_do_not():
    changed = [*said("eve", range(30), set(range(30))), *said("eve", range(30), TRUE, time=2.0)]
    doubt = [Verdict(f"x{i}", "C1", "unsure", "ann", 3.0) for i in range(15)]
    found = by_name([*changed, *said("ann", range(30), TRUE), *doubt])
    assert (found["eve"].frauds, found["eve"].judged, found["eve"].against) == (3, 30, 0)
    assert found["ann"].judged == 15
    assert not found["eve"].stands_out


def test_few_verdicts_say_nothing_and_nobody_else_is_no_comparison():
    found = by_name([*said("ann", range(200), TRUE), *said("eve", range(300, 305), set(range(300, 305)))])
    assert found["eve"].deviation > 3
    assert not found["eve"].stands_out
    alone = by_name(said("ann", range(50), set(range(50))))["ann"]
    assert (alone.deviation, alone.dissent, alone.stands_out) == (0.0, 0.0, False)
    assert standing_out([]) == []
