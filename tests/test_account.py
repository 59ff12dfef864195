import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.account import ENTRY, LATELY, STATE_VERSION, AccountCodec, StateError, state_sizes

CODEC = AccountCodec(window=4, local_history=5)


def filled(seed: int, held: int):
    rng = np.random.default_rng(seed)
    slab = CODEC.slab(2)
    for table in as_bytes(slab):
        table[1] = rng.integers(0, 256, table.shape[1])
    slab.records["held"][1], slab.records["count"][1] = held, held + 7
    return slab


def as_bytes(slab):
    """Records and histories, a row each."""
    return [table.view(np.uint8).reshape(len(table), -1) for table in (slab.records, slab.histories)]


@given(st.integers(0, 1000), st.integers(0, 8))
def test_round_trip(seed, held):
    slab = filled(seed, held)
    data = CODEC.pack(slab, 1)
    CODEC.unpack(data, slab, 0)
    assert CODEC.pack(slab, 0) == data
    used = held * ENTRY.itemsize
    records, histories = as_bytes(slab)
    assert bytes(records[0]) == bytes(records[1])
    assert bytes(histories[0, :used]) == bytes(histories[1, :used])
    assert not histories[0, used:].any()


def test_short_histories_take_little_room():
    codec = AccountCodec(50, 120)
    slab = codec.slab(1)
    assert len(codec.pack(slab, 0)) < 1400
    slab.records["held"][0] = slab.records["count"][0] = codec.longest_history
    assert len(codec.pack(slab, 0)) == codec.largest <= 4096


single = st.floats(width=32, allow_nan=False)


@given(st.lists(single, min_size=2 * len(LATELY), max_size=2 * len(LATELY)), st.integers(0, 8))
def test_what_the_account_did_lately_comes_back(lately, held):
    slab = filled(2, held)
    slab.records["lately"][1] = lately
    CODEC.unpack(CODEC.pack(slab, 1), slab, 0)
    assert slab.records["lately"][0].tolist() == lately
    CODEC.clear(slab, 0)
    assert slab.records["lately"][0].tolist() == [0.0] * len(lately)


@pytest.mark.parametrize("version", range(STATE_VERSION))
def test_states_from_before_are_refused_by_their_version(version):
    packed = bytearray(CODEC.pack(filled(1, 3), 1))
    packed[2] = version
    assert state_sizes(bytes(packed)) is None
    with pytest.raises(StateError, match=f"version {version}, this program reads version {STATE_VERSION}"):
        CODEC.unpack(bytes(packed), CODEC.slab(1), 0)


@given(st.integers(0, 8), st.data())
def test_damage_is_noticed(held, data):
    packed = CODEC.pack(filled(1, held), 1)
    slab = CODEC.slab(1)
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(StateError):
        CODEC.unpack(packed[:cut], slab, 0)
    flipped = bytearray(packed)
    flipped[cut] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StateError):
        CODEC.unpack(bytes(flipped), slab, 0)
    with pytest.raises(StateError):
        CODEC.unpack(packed + b"\0", slab, 0)


@given(st.binary(max_size=400))
def test_any_other_bytes_are_refused(data):
    with pytest.raises(StateError):
        CODEC.unpack(data, CODEC.slab(1), 0)


def test_other_settings_versions_and_types_are_named():
    slab = CODEC.slab(1)
    other = AccountCodec(5, 5)
    with pytest.raises(StateError, match="for window 5, local history 5, the model has window 4, local history 5"):
        CODEC.unpack(other.pack(other.slab(1), 0), slab, 0)
    packed = bytearray(CODEC.pack(slab, 0))
    packed[2] = 99
    with pytest.raises(StateError, match="version 99"):
        CODEC.unpack(bytes(packed), slab, 0)
    with pytest.raises(StateError, match="got NoneType"):
        CODEC.unpack(None, slab, 0)
