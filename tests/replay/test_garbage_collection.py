"""Circles of objects are looked for between batches, and as before afterwards."""

import gc
import weakref

import pytest

from replay.run.loop import GarbageControl, replay_stream
from replay.sources.source import ListSource
from stream_ccsd.engine import Engine


class Circle:
    def __init__(self):
        self.itself = self


def test_a_circle_is_gone_after_a_batch_however_old_it_is():
    with GarbageControl() as garbage_control:
        assert not gc.isenabled()
        young = weakref.ref(Circle())
        garbage_control.between_batches()
        assert young() is None
        old = Circle()
        seen = weakref.ref(old)
        garbage_control.between_batches()
        garbage_control.between_batches()
        del old
        for _ in range(30):
            garbage_control.between_batches()
        assert seen() is None
    assert gc.isenabled()


def test_it_is_as_before_behind_a_replay_that_fails_and_one_that_does_not(model, stream):
    looks = []
    gc.callbacks.append(look := lambda phase, about: looks.append(about["generation"]) if phase == "stop" else None)
    try:
        replay_stream(
            ListSource("some", stream.transactions[:300]), Engine(model), lambda batch_output: None, batch=100
        )
    finally:
        gc.callbacks.remove(look)
    assert len(looks) >= 3
    assert gc.isenabled()

    def fail(batch_output):
        assert not gc.isenabled()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        replay_stream(ListSource("some", stream.transactions[:300]), Engine(model), fail, batch=100)
    assert gc.isenabled()
    gc.disable()
    try:
        with GarbageControl():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
