"""Model folders whose hashes are right and whose contents are not: refused with a sentence, or scored from as they are.

Nothing here may end in a crash, in a loop without end, or in scores from memory that is not the model's: a folder that
is taken is loaded twice, to two places in memory, and both must say the same.
"""

import hashlib
import json
import math
import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stream_ccsd.engine import Engine
from stream_ccsd.evidence.supervised import HALF_LIVES, unsupervised
from stream_ccsd.fitting import fit
from stream_ccsd.model.model import Model, ModelError
from stream_ccsd.numerics.arrays import read_only
from stream_ccsd.transaction import identity
from tests.conftest import SMALL

EXAMPLES = int(os.environ.get("FUZZ", "60"))
PARTS = ("index", "laws", "learnt")
FILES = ("windows.arrow", "laws.arrow", "learnt.arrow", "names.arrow", "accounts.arrow")
# Two trees: of five nodes, and of three.
TREES = {
    "roots": [0, 5],
    "feature": [0, -1, 4, -1, -1, 2, -1, -1],
    "left": [1, -1, 3, -1, -1, 6, -1, -1],
    "right": [2, -1, 4, -1, -1, 7, -1, -1],
}


@pytest.fixture(scope="module")
def events(stream):
    """Of a few accounts, with a declared category and a declared number that may be missing."""
    few = sorted(stream.normal_accounts())[:8]
    chosen = [t for t in stream.transactions if t.account in few]
    far = [{} if i % 7 == 0 else {"distance": float(i % 13)} for i in range(len(chosen))]
    return [
        replace(t, fields={**more, "land": "abc"[i % 3]}) for i, (t, more) in enumerate(zip(chosen, far, strict=True))
    ]


@pytest.fixture(scope="module")
def whole(events):
    """A model with everything that compiled code takes from one."""
    model = fit(events, replace(SMALL, fields=("land:category", "distance:number"), time_unit="seconds"))
    plain = unsupervised(model.settings.declared, listening=True)
    accounts = sorted(identity(t.account) for t in {t.account: t for t in events}.values())
    merchants = sorted({model.codes(t.merchant) for t in events})
    codes = np.array([*accounts, *merchants], np.uint64)
    learnt = plain._replace(
        start=np.array([0, len(accounts), len(accounts), len(codes), len(codes)]),
        codes=codes,
        rates=np.linspace(-1.0, 2.0, len(codes) * len(HALF_LIVES)).reshape(-1, len(HALF_LIVES)),
        amount=np.linspace(0.0, 2.0, len(plain.amount)),
        number=np.ones_like(plain.number),
        frauds=np.full(len(plain.frauds), 5.0),
        **{name: np.array(places, np.int32) for name, places in TREES.items()},
        threshold=np.linspace(-1.0, 1.0, 8),
        value=np.linspace(-0.5, 0.5, 8),
    )
    return replace(model, learnt=read_only(learnt))


@pytest.fixture(scope="module")
def good(whole, tmp_path_factory):
    return whole.save(tmp_path_factory.mktemp("good") / "model")


@pytest.fixture(scope="module")
def asked(whole, events):
    """Some transactions to score, and what the model says of them."""
    first, second = (name for name in sorted({t.account for t in events})[:2])
    chosen = [t for t in events if t.account == first][:25] + [t for t in events if t.account == second][:3]
    chosen.append(replace(chosen[-1], id="odd", amount=2.0**53, merchant="never", category="never", fields={}))
    chosen.append(replace(chosen[-1], id="far", amount=0.0, fields={"distance": -(2.0**53), "land": "z"}))
    return chosen, said(whole, chosen)


def said(model, chosen):
    """All scores and reasons: the lowest threshold makes alerts."""
    return [(r.scores, r.terms, r.alert) for r in Engine(model, threshold=-1.0).process_many(chosen)]


def resealed(folder, change=lambda described: None):
    """The description with every hash, size and version as they would be of these contents."""
    described = json.loads((folder / "model.json").read_text())
    names = described.keys() - {"version", "files"}
    change(described)
    if isinstance(described.get("files"), dict):
        for name in described["files"].keys() & set(FILES):
            data = (folder / name).read_bytes()
            described["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    own = {name: described[name] for name in names & described.keys()}
    version = hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=6).hexdigest()
    (folder / "model.json").write_text(json.dumps({**described, "version": version}))
    return folder


def with_array(model, part, name, array):
    return replace(model, **{part: getattr(model, part)._replace(**{name: array})})


def refused_or_the_same(folder, asked):
    """Whether a folder was refused; if it was not, it is scored from, and nothing else is."""
    try:
        models = [Model.load(folder) for _ in range(2)]
    except ModelError:
        return True
    one, two = (said(model, asked[0]) for model in models)
    assert one == two
    assert all(math.isfinite(scores["evidence"]) and math.isfinite(scores["takeover"]) for scores, *_ in one)
    return False


def test_the_whole_model_is_taken(good, asked, tmp_path):
    assert said(Model.load(good), asked[0]) == asked[1]
    shutil.copytree(good, tmp_path / "copy")
    resealed(tmp_path / "copy", lambda described: described.update(more="nobody asks for this"))
    assert said(Model.load(tmp_path / "copy"), asked[0]) == asked[1]


def test_what_is_fitted_on_the_smallest_numbers_is_taken(events, tmp_path):
    """Divided by scales as small as these, gaps and numbers would be infinite, and have no place in a density."""
    tiny = [replace(t, time=1e-300 * i, fields={"distance": 1e-300}) for i, t in enumerate(events[:120])]
    model = Model.load(fit(tiny, replace(SMALL, fields=("distance:number",), horizon=1e15)).save(tmp_path / "model"))
    late = replace(tiny[0], id="late", time=1e15, fields={"distance": 2.0**53})
    assert math.isfinite(Engine(model).process_many([tiny[0], late])[-1].scores["evidence"])


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("part", "name", "change", "expected"),
    [
        ("index", "start", lambda a: changed(a, 1, 10**12), r"windows\.arrow: start: expected numbers from 0 to"),
        ("index", "start", lambda a: a[::-1].copy(), r"windows\.arrow: start: expected rising places"),
        ("index", "regime", lambda a: changed(a, 0, 100), r"windows\.arrow: regime: expected numbers from 0 to 3"),
        ("index", "z", lambda a: np.ascontiguousarray(a[:, 1:]), r"windows\.arrow: z: expected an array float32 \("),
        ("index", "y", lambda a: changed(a, 0, np.nan), r"windows\.arrow: y: expected numbers from 0.*got nan"),
        ("index", "merchant", lambda a: a[::-1].copy(), r"windows\.arrow: category, merchant: expected each"),
        ("laws", "amount_start", lambda a: changed(a, -1, 2**40), r"laws\.arrow: amount_start: expected numbers"),
        ("laws", "amount_cells", lambda a: changed(a, 0, -(2**63)), r"laws\.arrow: amount_cells: expected numbers"),
        ("laws", "amount_cells", lambda a: a[::-1].copy(), r"laws\.arrow: amount_cells: expected each.*in each part"),
        ("laws", "amount_mass", lambda a: 0.5 * a, r"laws\.arrow: amount_mass: expected the sum of the weights"),
        ("laws", "tells", lambda a: np.ones(10**5), r"laws\.arrow: tells: expected an array float64 \(\d+,\), got"),
        ("laws", "gaps", lambda a: changed(a, (0, 0), 0.0), r"laws\.arrow: gaps: expected numbers from"),
        ("laws", "number_kernel", lambda a: a[0], r"laws\.arrow: number_kernel: expected an array float64 \(1, "),
        ("laws", "hour", lambda a: a.astype(np.float32), r"laws\.arrow: hour: expected an array float64 \(96,\)"),
        ("learnt", "left", lambda a: changed(a, 0, 0), r"learnt\.arrow: left: expected places behind each node"),
        ("learnt", "right", lambda a: changed(a, 2, 0), r"learnt\.arrow: right: expected places behind each node"),
        ("learnt", "right", lambda a: changed(a, 0, 6), r"learnt\.arrow: right: .* in its own tree"),
        ("learnt", "feature", lambda a: changed(a, 0, 10**6), r"learnt\.arrow: feature: expected numbers from -1"),
        ("learnt", "roots", lambda a: changed(a, 1, 2**30), r"learnt\.arrow: roots: expected numbers from 0 to 7"),
        ("learnt", "chosen", lambda a: changed(a, 0, -1), r"learnt\.arrow: chosen: expected numbers from 0 to 4"),
        ("learnt", "term_of", lambda a: changed(a, 0, 999), r"learnt\.arrow: term_of: expected the term of each"),
        ("learnt", "start", lambda a: changed(a, 2, 0), r"learnt\.arrow: start: expected rising places"),
    ],
)
def test_an_array_that_compiled_code_would_be_led_astray_by(whole, tmp_path, part, name, change, expected):
    """File, array and what was expected are said."""
    bad = with_array(whole, part, name, change(getattr(getattr(whole, part), name)))
    with pytest.raises(ModelError, match=expected):
        Model.load(bad.save(tmp_path / "model"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"threshold": math.nan}, r"model\.json: threshold: expected a number from .*, got nan"),
        ({"threshold": "3"}, r"model\.json: threshold: expected a number from .*, got '3'"),
        ({"sigma_y": 0.0}, r"model\.json: sigma_y: expected a number from"),
        ({"facts": None}, r"model\.json: facts: expected names with values, got None"),
        ({"facts": {"library_windows": 1, "transactions": []}}, r"facts: transactions: expected a whole number"),
        ({"facts": {"library_windows": 1, "last_time": "x"}}, r"facts: last_time: expected a number"),
        ({"facts": {"library_windows": 1, "lessons": {"weighed_at": "x"}}}, r"facts lessons: weighed_at: expected"),
        ({"facts": {"library_windows": 1, "lessons": {"shares": [1.0, 0.5]}}}, r"lessons: shares: expected rising"),
        ({"facts": {"library_windows": 1, "lessons": {"shares": ["x"]}}}, r"lessons: shares: expected rising"),
        ({"facts": {}}, r"facts: expected the number of library_windows"),
        ({"fingerprint": 3}, r"model\.json: fingerprint: expected a text"),
        ({"tails": {"evidence": 3}}, "not a complete model"),
        ({"index": []}, r"windows\.arrow: expected the values and shapes"),
    ],
)
def test_a_description_of_the_wrong_kind(good, tmp_path, change, expected):
    shutil.copytree(good, tmp_path / "copy")
    with pytest.raises(ModelError, match=expected):
        Model.load(resealed(tmp_path / "copy", lambda described: described.update(change)))


def test_rates_that_do_not_rise(whole, tmp_path):
    tail = whole.tails["evidence"]
    for name, values in (
        ("knots", tail.knots[::-1]),
        ("rarity", tail.rarity[::-1]),
        ("scale", 0.0),
        ("shape", math.inf),
    ):
        bad = replace(whole, tails={**whole.tails, "evidence": tail._replace(**{name: values})})
        with pytest.raises(ModelError, match=rf"model\.json: tails: evidence: {name}: expected"):
            Model.load(bad.save(tmp_path / "model"))


FLOATS = (math.nan, math.inf, -math.inf, 1e308, -1e308, -1.0, 0.0, 5e-324, 1.0, 1e9, 0.5)
WHOLE = (0, 1, 2, 7, 100, 10**6, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1, -1, -2, -(2**31), -(2**63))
KINDS = (np.float64, np.float32, np.int64, np.int32, np.uint64, np.uint8)


def _drawn(chance, pool, kind):
    """One of the pool, or what this kind makes of it."""
    return np.array(chance.choice(pool)).astype(kind)


def mutated(chance, array):
    """An array as somebody might write it, and whether that can only be refused."""
    how = chance.choice(("value", "value", "value", "order", "shape", "kind", "bytes"))
    with np.errstate(all="ignore"):
        if how == "kind":
            kind = chance.choice([k for k in KINDS if k != array.dtype])
            return array.astype(kind), True
        if how == "value" and array.size:
            new = array.copy()
            for _ in range(chance.randint(1, 3)):
                pool = FLOATS if array.dtype.kind == "f" else WHOLE
                new.ravel()[chance.randrange(array.size)] = _drawn(chance, pool, array.dtype)
            return new, array.dtype.kind == "f" and not np.isfinite(new).all()
    if how == "order" and array.size:
        order = np.arange(len(array))
        i, j = chance.randrange(len(array)), chance.randrange(len(array))
        order[[i, j]] = order[[j, i]]
        return array[order[::-1] if chance.random() < 0.3 else order].copy(), False
    if how == "bytes" and array.size:
        return np.frombuffer(chance.randbytes(array.nbytes), array.dtype).reshape(array.shape), False
    shapes = [array[:-1], np.concatenate([array, array[-1:]]), array[None], array.ravel(), array[:0], array[..., :-1]]
    return np.ascontiguousarray(chance.choice(shapes)), False


trying = settings(
    max_examples=EXAMPLES,
    derandomize="FUZZ" not in os.environ,  # FUZZ=5000 looks for new trouble; CI tries the same each time
    suppress_health_check=list(HealthCheck),
)


@trying
@given(chance=st.integers(0, 2**32).map(random.Random))
def test_whatever_arrays_hold(whole, asked, tmp_path_factory, chance):
    part = chance.choice(PARTS)
    arrays = {n: a for n, a in getattr(whole, part)._asdict().items() if isinstance(a, np.ndarray)}
    name = chance.choice(sorted(arrays))
    array, hopeless = mutated(chance, arrays[name])
    folder = with_array(whole, part, name, array).save(tmp_path_factory.mktemp("bad") / "model")
    refused = refused_or_the_same(folder, asked)
    assert refused or not hopeless
    shutil.rmtree(folder.parent)


ODD = (
    None,
    True,
    -1,
    0,
    3,
    2.5,
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    -(10**30),
    "",
    "x",
    "1",
    [],
    [1],
    {},
    {"a": 1},
)


def somewhere(chance, described):
    """A place in a description: what holds it, and its name or number there."""
    holder, at = described, chance.choice(sorted(described))
    while isinstance(holder[at], dict | list) and holder[at] and chance.random() < 0.8:
        holder = holder[at]
        at = chance.choice(sorted(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))
    return holder, at


@trying
@given(chance=st.integers(0, 2**32).map(random.Random))
def test_whatever_files_hold(good, asked, tmp_path_factory, chance):
    """Bytes of Arrow files and values of the description, with hashes of what they are now."""
    folder = tmp_path_factory.mktemp("bad") / "model"
    shutil.copytree(good, folder)

    def change(described):
        holder, at = somewhere(chance, described)
        if chance.random() < 0.2:
            del holder[at]
        else:
            odd = chance.choice(ODD)
            # A whole number may stand for a fraction, and would have everything compiled for it.
            small = isinstance(holder[at], float) and type(odd) is int and abs(odd) < 2**53
            holder[at] = float(odd) if small else odd

    if chance.random() < 0.5:
        file = folder / chance.choice(FILES)
        data = bytearray(file.read_bytes())
        for _ in range(chance.choice((1, 1, 3, 30))):
            # Most of a file is numbers; what says where they are stands at both ends.
            place = chance.choice((chance.randrange(len(data)), -1 - chance.randrange(min(4000, len(data)))))
            data[place] = chance.randrange(256)
        file.write_bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data)
        resealed(folder)
    else:
        resealed(folder, change)
    refused_or_the_same(folder, asked)
    shutil.rmtree(folder.parent)
