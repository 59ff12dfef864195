from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.fitting import fit
from stream_ccsd.model import codes as module
from stream_ccsd.model.codes import Codes
from stream_ccsd.model.model import Model
from stream_ccsd.transaction import Transaction, text_hash
from tests.conftest import SMALL


def _collision() -> tuple[str, str]:
    seen: dict[int, str] = {}
    for number in range(1_000_000):
        name = f"m{number}"
        other = seen.setdefault(text_hash(name, 4), name)
        if other != name:
            return other, name
    raise AssertionError("no two names share a hash")


@pytest.fixture(scope="module")
def twins():
    """Two names with one 32-bit hash: among a hundred thousand there is usually such a pair."""
    return _collision()


def test_names_that_share_a_hash_have_codes_of_their_own(twins):
    first, second = twins
    codes = Codes.of([second, first, "fuel"])
    assert len({codes(name) for name in (first, second, "fuel")}) == 3
    assert codes.names[codes(first)] == first
    assert codes.names[codes(second)] == second
    assert codes.names == Codes.of([first, "fuel", second]).names  # whatever their order


def test_a_name_that_is_not_known_is_never_taken_for_one_that_is(twins):
    known, stranger = twins
    codes = Codes.of([known])
    assert codes(stranger) != codes(known)
    assert codes(stranger) == codes(stranger)


def test_a_model_tells_them_apart(twins, stream, tmp_path):
    """A merchant of normal accounts and one nobody knows: the second is as rare as any other stranger."""
    known, stranger = twins
    normal = stream.normal_accounts()
    moved = [
        Transaction(t.account, t.time, t.amount, t.category, known, t.id) if t.merchant == "m0001" else t
        for t in stream.transactions
        if t.account in normal
    ]
    fit(moved, SMALL).save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    from stream_ccsd.engine import Engine

    category = next(t.category for t in moved if t.merchant == known)

    def evidence(merchant):
        return Engine(model).process(Transaction("a", 1.0, 20.0, category, merchant, "1")).evidence

    assert evidence(stranger) == evidence("some other stranger")
    assert evidence(known) < evidence(stranger)


@given(st.lists(st.text(max_size=5), max_size=30))
def test_every_known_name_has_a_code_of_its_own_even_of_few_bits(names):
    """With a hash of eight bits collisions are the rule; the codes must still differ."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "text_hash", lambda text, size: text_hash(text, 1))
        codes = Codes.of(names)
        found = {name: codes(name) for name in names}
    assert all(found[a] != found[b] for a, b in combinations(found, 2))


def test_strangers_are_forgotten_not_hoarded(monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 10)
    codes = Codes({})
    before = [codes(f"x{i}") for i in range(50)]
    assert len(codes._others) <= 10
    assert [codes(f"x{i}") for i in range(50)] == before
