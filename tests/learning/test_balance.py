"""Frauds that one person alone finds at one merchant have a bounded weight."""

from tests.learning.test_label_buffer import BufferPair, says, tx

LIES = [f"t{i}" for i in range(20)]


def pair_after(population_model, *updates):
    """A label buffer with 20 transactions at a merchant and four at another, and verdicts by model update."""
    pair = BufferPair(population_model)
    seen = [*(tx(name, 0.5) for name in LIES), *(tx(f"e{i}", 0.5, merchant="m0002") for i in range(4))]
    for day, verdicts in enumerate(updates, start=1):
        pair.update(float(day), seen if day == 1 else [], verdicts)
    return pair


def frauds(pair):
    return {name for name, label in pair.labels().items() if label == "fraud"}


MALLORY = [says("fraud", name, 0.6, "mallory") for name in LIES]
ANN = [says("fraud", f"e{i}", 0.6) for i in range(4)]


def test_no_more_than_others_found_there_or_the_same_person_elsewhere(population_model):
    assert pair_after(population_model, [*MALLORY, *ANN]).own.outweighed == 15
    for name, more in {
        "others there": [says("fraud", name, 0.7, "eve") for name in LIES[:8]],
        "echoes": [says("fraud", f"e{i}", 0.7, "mallory") for i in range(4)],
        "chargebacks": [says("fraud", name, 0.7, "mallory", source="chargeback") for name in LIES[:8]],
    }.items():
        pair = pair_after(population_model, [*MALLORY, *ANN, *more])
        assert pair.own.outweighed == {"others there": 4, "echoes": 15, "chargebacks": 4}[name], name
        assert len(frauds(pair)) == 24 - pair.own.outweighed, name
    ann = [says("fraud", name, 0.6, "ann") for name in LIES]
    pair = pair_after(population_model, [*ann, *ANN, *(says("normal", "e3", 0.7, who) for who in ("ann", "eve"))])
    assert pair.own.outweighed == 0  # nobody else found any


def test_who_is_the_only_one_to_judge_is_not_bounded_until_others_do(population_model):
    pair = pair_after(population_model, MALLORY)
    assert len(frauds(pair)) == 20
    pair = pair_after(population_model, MALLORY, ANN)
    assert (pair.own.outweighed, len(frauds(pair))) == (15, 9)
    frauds_there = pair.counts("merchant", "m0001")[0, -1]
    assert 4.5 < frauds_there < 5.0  # what was counted before is taken back
    # Whoever agrees makes them count, also those that nobody spoke of again.
    pair = pair_after(population_model, MALLORY, ANN, [says("fraud", name, 2.5, "eve") for name in LIES[:12]])
    assert (pair.own.outweighed, len(frauds(pair))) == (0, 24)
    # And whoever overrules ends it.
    pair = pair_after(population_model, MALLORY, ANN, [says("normal", name, 2.5, "mallory") for name in LIES])
    assert (pair.own.outweighed, frauds(pair)) == (0, {f"e{i}" for i in range(4)})
