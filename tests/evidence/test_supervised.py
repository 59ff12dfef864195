"""Evidence after learning, against naive forms: plain densities, trees as nested nodes, fraud rates as dicts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_ccsd.engine import Engine
from stream_ccsd.evidence.supervised import (
    BINS,
    HALF_LIVES,
    OWN_INPUTS,
    _filled,
    contributions,
    evidence_by,
    input_names,
    rated_fields,
    term_names,
    unsupervised,
)
from stream_ccsd.fields import density_terms
from stream_ccsd.learning.learner import listening
from stream_ccsd.learning.trees import grow_trees
from stream_ccsd.numerics.arrays import read_only
from stream_ccsd.transaction import identity
from tests import naive
from tests.evidence.test_terms import FIELDS, PLAIN, UNITS, learn, some

DECLARED = replace(PLAIN, fields=FIELDS).declared
INPUTS, TERMS = input_names(DECLARED), term_names(DECLARED)


def random_tree(rng, depth):
    node = {"value": float(rng.normal())}
    if depth and rng.random() < 0.8:
        node |= {"feature": int(rng.integers(len(INPUTS))), "threshold": float(rng.normal())}
        node |= {side: random_tree(rng, depth - 1) for side in ("left", "right")}
    return node


def laid_out(trees):
    """Nested nodes as arrays, in another order than the code's own: breadth first."""
    nodes, roots = list(trees), list(range(len(trees)))
    columns = {"feature": [], "threshold": [], "left": [], "right": [], "value": []}
    for node in nodes:  # which grows meanwhile
        inner = "feature" in node
        columns["feature"].append(node["feature"] if inner else -1)
        columns["threshold"].append(node["threshold"] if inner else 0.0)
        for side in ("left", "right"):
            columns[side].append(len(nodes) if inner else -1)
            if inner:
                nodes.append(node[side])
        columns["value"].append(node["value"])
    kinds = {"threshold": float, "value": float}
    return {"roots": np.array(roots, np.int32)} | {n: np.array(c, kinds.get(n, np.int32)) for n, c in columns.items()}


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(0, 4), st.integers(0, 5))
def test_terms_by_weights_and_trees(seed, trees, depth):
    rng = np.random.default_rng(seed)
    grown = [random_tree(rng, depth) for _ in range(trees)]
    supervised = unsupervised(DECLARED, listening=True)
    supervised = read_only(supervised._replace(weights=rng.normal(1, 1, len(supervised.weights)), **laid_out(grown)))
    inputs = rng.normal(0, 2, len(INPUTS)).round(1)  # thresholds are hit exactly now and then
    terms = np.full(len(TERMS), np.nan)
    total = contributions(supervised, inputs, terms)
    expected = naive.attributed(supervised.weights, grown, supervised.term_of, inputs, len(TERMS))
    np.testing.assert_allclose(terms, expected, atol=1e-12)
    assert total == pytest.approx(math.fsum(terms), abs=1e-12)
    assert evidence_by(supervised, inputs[None], len(TERMS))[0] == total
    # Whatever was asked on the way: together it is where a tree ends, over where it began.
    ends = sum(_end(tree, inputs)["value"] - tree["value"] for tree in grown)
    assert total == pytest.approx(float(supervised.weights @ inputs[: len(supervised.weights)]) + ends, abs=1e-9)


def _end(node, inputs):
    while "feature" in node:
        node = node["left" if inputs[node["feature"]] <= node["threshold"] else "right"]
    return node


def test_every_input_belongs_to_the_term_it_is_named_after():
    own = dict(zip(INPUTS, (TERMS[i] for i in unsupervised(DECLARED, True).term_of), strict=True))
    assert len(own) == len(INPUTS)
    assert all(own[name] == name for name in TERMS if name in own)
    for name, term in own.items():
        if "_record_" in name:
            assert name.startswith(term)
    assert [own[name] for name in OWN_INPUTS] == ["lately", "amount", "amount_own", "hour", "weekday", "gap"]
    assert own["distance_value"] == "distance"
    assert {own[name] for name in own if name.startswith("lately")} == {"lately"}


shares = st.floats(1e-6, 10.0)


@settings(max_examples=300)
@given(st.floats(0.01, 1.0), shares, shares, shares, st.floats(0.0, 1e4))
def test_the_fraud_density_is_the_prior_and_what_was_found(p, normal, diffuse, found, frauds):
    term = math.log(((1 - p) * normal + p * diffuse) / normal)
    expected = naive.fraud_log_ratio(p, normal, diffuse, found, frauds)
    got = _filled(term, p, found / diffuse, frauds)
    # Where fraud hardly ever differs there, the ratio is the rest of a difference.
    assert got == pytest.approx(expected, rel=1e-6, abs=1e-6 + 1e-15 * found / diffuse / p)
    assert _filled(term, p, found / diffuse, 0.0) == term


def test_no_verdict_no_change():
    """A model that can learn but has not scores the same, to the bit, and records its inputs."""
    rng = np.random.default_rng(4)
    for unit in UNITS:
        normal = [t for a in range(5) for t in some(rng, f"a{a}", 14, **UNITS[unit])]
        model, _ = learn(normal, replace(PLAIN, fields=FIELDS, time_unit=unit))
        events = [t for a in range(3) for t in some(rng, f"b{a}", 12, **UNITS[unit])]
        silent, heard = Engine(model).process_many(events), Engine(listening(model)).process_many(events)
        for a, b in zip(silent, heard, strict=True):
            assert (a.scores, a.rarities, a.score, a.terms) == (b.scores, b.rarities, b.score, b.terms)
            assert a.inputs is None
            assert b.inputs is not None
            densities = density_terms(model.settings.declared)
            np.testing.assert_allclose(b.inputs[: len(densities)], [a.terms[n] for n in densities], atol=6e-5)


def random_supervised(rng, model, transactions):
    """A random result of learning, as plain dicts and lists, and as the engine takes it."""
    fields = rated_fields(model.settings.declared)
    records, codes, rates, start = [], [], [], [0]
    for name in fields:
        own = {}
        for t in transactions:
            value = getattr(t, name, None) if name in ("account", "category", "merchant") else t.fields.get(name) or ""
            if value not in own and rng.random() < 0.5:
                own[value] = rng.normal(0, 2, len(HALF_LIVES))
        hashed = {identity(v) if name == "account" else model.codes(v): r for v, r in own.items()}
        codes += sorted(hashed)
        rates += [hashed[code] for code in sorted(hashed)]
        start.append(len(codes))
        records.append(own)
    plain = unsupervised(model.settings.declared, True)
    trees = [random_tree(rng, 3) for _ in range(5)]
    supervised = plain._replace(
        start=np.array(start),
        codes=np.array(codes, np.uint64),
        rates=np.array(rates).reshape(len(codes), len(HALF_LIVES)),
        unknown=rng.normal(0, 1, plain.unknown.shape),
        chosen=rng.integers(0, len(HALF_LIVES), len(fields)),
        amount=rng.exponential(1, BINS),
        hour=rng.exponential(1, 24),
        weekday=rng.exponential(1, 7),
        gap=rng.exponential(1, len(plain.gap)),
        number=rng.exponential(1, plain.number.shape),
        frauds=np.array([30.0, 0.0, 4.0, 100.0, 12.0])[: len(plain.frauds)],
        weights=rng.normal(1, 0.3, len(plain.weights)),
        **laid_out(trees),
    )
    # Read only, as a model update leaves it: for other arrays all of the scoring would be compiled once more.
    return read_only(supervised), records, trees


@pytest.mark.parametrize("unit", UNITS)
def test_the_engine_by_what_was_learnt(unit):
    """Every input and every term, from the transactions as they are."""
    rng = np.random.default_rng(len(unit))
    normal = [t for a in range(5) for t in some(rng, f"a{a}", 14, **UNITS[unit])]
    model, chosen = learn(normal, replace(PLAIN, fields=FIELDS, time_unit=unit, grace=1e6))
    events = [t for a in range(3) for t in some(rng, f"b{a}", 15, **UNITS[unit])]
    last = events[-1]
    events += [replace(last, id="late", time=last.time - UNITS[unit]["pace"]), replace(last, id="nothing", fields={})]
    events += [replace(last, id="much", amount=2.0**53, merchant="never", category="never")]
    supervised, records, trees = random_supervised(rng, model, events)
    densities = naive.Densities(normal, chosen, model.settings, model.calendar)
    plain = Engine(model).process_many(events)
    results = Engine(replace(model, learnt=supervised)).process_many(events)
    past = {}
    for t, before, result in zip(events, plain, results, strict=True):
        expected = expected_inputs(model, densities, supervised, records, past.setdefault(t.account, []), t, before)
        assert [*expected] == [*INPUTS]
        got = dict(zip(INPUTS, result.inputs.tolist(), strict=True))
        for name, value in expected.items():
            assert got[name] == pytest.approx(value, abs=3e-4), (name, t)
        if not near_a_threshold(trees, [*expected.values()]):
            terms = naive.attributed(supervised.weights, trees, supervised.term_of, [*expected.values()], len(TERMS))
            np.testing.assert_allclose([*result.terms.values()], terms, atol=1e-3)
        assert math.fsum(result.terms.values()) == pytest.approx(result.evidence, abs=1e-9)
        assert result.takeover == before.takeover  # which is not about what others found
        past[t.account].append(t)


def near_a_threshold(trees, inputs):
    """Where what is known of an input, to four digits, does not say which way to go."""
    nodes = list(trees)
    for node in nodes:
        if "feature" in node:
            if abs(inputs[node["feature"]] - node["threshold"]) < 1e-3:
                return True
            nodes += [node["left"], node["right"]]
    return False


def expected_inputs(model, densities, supervised, records, past, t, before):
    view = naive.View(past, t, densities.axes, model.settings, model.calendar)
    filled = dict(before.terms)
    places = {"amount": (1.0, supervised.amount, min(int(math.log1p(t.amount) / 0.25), BINS - 1))}
    p = model.settings.departure
    if view.hour is not None:
        places["hour"] = (p, supervised.hour, int(view.hour))
        places["weekday"] = (p, supervised.weekday, int(view.weekday))
    if view.gap is not None:
        places["gap"] = (p, supervised.gap, naive.octave(view.gap, densities.axes.gap_scale))
    distance = t.fields.get("distance")
    at = 0.0 if distance is None else naive.signed_log(distance, densities.axes.number_scale["distance"])
    if distance is not None:
        places["distance"] = (p, supervised.number[0], min(max(math.floor(at / 0.25) + BINS // 2, 0), BINS - 1))
    informative = dict(zip(density_terms(model.settings.declared), model.laws.tells.tolist(), strict=True))
    for frauds, name in zip(supervised.frauds, ("amount", "hour", "weekday", "gap", "distance"), strict=True):
        if name in places and informative[name]:
            share, ratios, place = places[name]
            diffuse = (math.exp(before.terms[name]) - 1 + share) / share  # over the normal density
            filled[name] = naive.fraud_log_ratio(share, 1.0, diffuse, ratios[place] * diffuse, frauds)
    out = {name: filled[name] for name in density_terms(model.settings.declared)}
    values = {"account": t.account, "category": t.category, "merchant": t.merchant}
    values |= {"country": t.fields.get("country") or ""}
    rates = {}
    for i, name in enumerate(rated_fields(model.settings.declared)):
        own = records[i].get(values[name], supervised.unknown[i])
        out[f"{name}_record"] = own[supervised.chosen[i]]
        rates |= {f"{name}_record_{life:g}": rate for life, rate in zip(HALF_LIVES, own, strict=True)}
    out |= rates
    for i, (more, count) in enumerate(naive.lately(past, t, densities.axes, model.settings, model.calendar)):
        out |= {f"lately_more_{i}": more / (count + 1), f"lately_count_{i}": math.log1p(count)}
    out |= {"takeover": before.takeover, "size": math.log1p(t.amount)}
    out["beyond"] = densities.axes.residual(t) - view.usual
    out |= {"at_hour": -1.0 if view.hour is None else view.hour}
    out |= {"at_weekday": -1.0 if view.weekday is None else view.weekday}
    out["after"] = -1.0 if view.gap is None else math.log1p(view.gap / densities.axes.gap_scale)
    out["distance_value"] = at
    return out


@pytest.mark.parametrize("seed", range(3))
def test_trees_are_those_that_were_grown(seed, monkeypatch):
    """Contributions and the values of the roots are, together, what LightGBM itself says."""
    import lightgbm

    kept = []
    train = lightgbm.train
    monkeypatch.setattr(lightgbm, "train", lambda *given, **more: kept.append(train(*given, **more)) or kept[-1])
    rng = np.random.default_rng(seed)
    inputs = rng.normal(0, 2, (1500, len(INPUTS))).round(2).astype(np.float32)
    inputs[:, 3] = 0.0  # a constant, and a value that is nearly always the same
    inputs[:, 4] = rng.random(1500) < 0.01
    odds = 0.5 * inputs[:, 0].astype(float) - 2.0
    fraud = rng.random(1500) < 1 / (1 + np.exp(-odds - 2.0 * (inputs[:, 1] > 1)))
    weight = rng.uniform(0.5, 3.0, 1500)
    trees = grow_trees(inputs, odds, fraud, weight)
    assert len(trees.roots)
    supervised = unsupervised(DECLARED, True)
    supervised = read_only(supervised._replace(weights=np.zeros(len(supervised.weights)), **trees._asdict()))
    others = np.vstack([inputs, rng.normal(0, 5, (500, len(INPUTS))).astype(np.float32), np.zeros((1, len(INPUTS)))])
    # Inputs that lie on a threshold, or as near to it as numbers can; LightGBM takes all below 1e-35 for 0.
    inner = (trees.feature >= 0) & (np.abs(trees.threshold) > 1e-30)
    edges = np.zeros((int(inner.sum()), len(INPUTS)))
    edges[np.arange(len(edges)), trees.feature[inner]] = trees.threshold[inner]
    others = np.vstack([others, edges, np.nextafter(edges, np.inf), np.nextafter(edges, -np.inf)]).astype(float)
    said = evidence_by(supervised, others, len(TERMS)) + trees.value[trees.roots].sum()
    np.testing.assert_allclose(said, kept[0].predict(others, raw_score=True), atol=1e-9)
    again = grow_trees(inputs, odds, fraud, weight)
    for name, column in trees._asdict().items():
        assert getattr(again, name).tobytes() == column.tobytes()
    assert not len(grow_trees(inputs[:8], odds[:8], fraud[:8], weight[:8]).roots)  # of next to nothing, none
