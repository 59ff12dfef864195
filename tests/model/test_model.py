import json
import os
from dataclasses import replace

import numpy as np
import pytest

from stream_ccsd.engine import Engine
from stream_ccsd.evidence.supervised import unsupervised
from stream_ccsd.model.model import Model, ModelError
from stream_ccsd.scores import COMPILED
from tests.conftest import SMALL

FILES = ["model.json", "windows.arrow", "laws.arrow", "names.arrow"]


@pytest.fixture
def place(model, tmp_path):
    return model.save(tmp_path / "model")


def test_a_loaded_model_is_the_same(model, place, stream):
    loaded = Model.load(place)
    assert loaded.version == model.version
    assert loaded.settings == SMALL
    # What follows from the windows is not stored, and is the same for whoever loads them.
    assert "blocks" not in json.loads((place / "model.json").read_text())["index"]["values"]
    parts = [(part.index[:-1], part.index.blocks, part.laws) for part in (model, loaded)]
    for a, b in zip(*parts, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)
    assert Engine(loaded).process_many(stream.transactions) == Engine(model).process_many(stream.transactions)


def test_what_was_loaded_stays_whatever_happens_to_the_files(place, model, stream):
    loaded = Model.load(place)
    assert not loaded.index.z.flags.owndata  # the very bytes that were verified
    assert not loaded.index.z.flags.writeable
    for name in FILES:  # written over in place, then cut to nothing: both reach whoever maps a file
        with (place / name).open("r+b") as file:
            file.write(b"\xff" * file.seek(0, os.SEEK_END))
            file.truncate(0)
    assert Engine(loaded).process_many(stream.transactions) == Engine(model).process_many(stream.transactions)


def test_a_description_that_is_too_deep(place):
    (place / "model.json").write_text("[" * 100_000)
    with pytest.raises(ModelError, match=r"model\.json cannot be read"):
        Model.load(place)


def test_the_description_is_readable(place, model):
    described = json.loads((place / "model.json").read_text())
    assert described["version"] == model.version
    assert described["sigma_x"] == model.index.sigma_x
    assert described["settings"]["window"] == SMALL.window
    assert described["facts"]["library_windows"] == len(model.index.z)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(place, name):
    (place / name).unlink()
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        Model.load(place)


@pytest.mark.parametrize("name", FILES)
def test_a_truncated_file(place, name):
    data = (place / name).read_bytes()
    (place / name).write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        Model.load(place)


@pytest.mark.parametrize("name", FILES[1:])
def test_a_foreign_file_of_the_same_size(place, name):
    data = bytearray((place / name).read_bytes())
    data[len(data) // 2] ^= 1
    (place / name).write_bytes(data)
    with pytest.raises(ModelError, match=f"{name}.*damaged or foreign"):
        Model.load(place)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "something else"}, "does not describe"),
        ({"format_version": 99}, "format version 99"),
        ({"files": None}, "lists no files"),
        ({"settings": {"windw": 1}}, "unknown setting"),
        ({"tails": {}}, "not a complete model"),
        ({"files": {}}, "says nothing of windows.arrow"),
        ({"files": {"windows.arrow": None}}, "says nothing of windows.arrow"),
        ({"threshold": 1.0}, "was altered"),
        ({"version": "abc"}, "was altered"),
    ],
)
def test_another_description(place, change, message):
    described = json.loads((place / "model.json").read_text())
    (place / "model.json").write_text(json.dumps({**described, **change}))
    with pytest.raises(ModelError, match=message):
        Model.load(place)


def test_no_model_at_all(tmp_path):
    with pytest.raises(ModelError, match=r"no model at .*Make one with `fit`"):
        Model.load(tmp_path / "nothing")


def test_saving_replaces_a_model_but_nothing_else(model, place, tmp_path):
    model.save(place)
    assert sorted(os.listdir(tmp_path)) == ["model"]
    other = tmp_path / "precious"
    other.mkdir()
    (other / "work.txt").write_text("mine")
    with pytest.raises(ModelError, match="not a model"):
        model.save(other)
    assert (other / "work.txt").read_text() == "mine"


def test_a_failing_replacement_leaves_the_old_model(model, place, monkeypatch):
    original = os.replace

    def full_disk(source, target):
        if str(source).endswith("model") and str(target) == str(place):
            raise OSError(28, "No space left on device")
        original(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(ModelError, match="No space left"):
        model.save(place)
    monkeypatch.undo()
    assert Model.load(place).version == model.version


def test_arrays_of_a_model_are_of_one_kind(model):
    """Those that can be written to are another type to the compiler, which makes all of the scoring once more."""
    densities = model.laws._replace(tells=np.ones_like(model.laws.tells))
    tail = model.tails["evidence"]._replace(knots=model.tails["evidence"].knots + 1.0)
    supervised = unsupervised(model.settings.declared, listening=True)
    changed = replace(model, laws=densities, tails={**model.tails, "evidence": tail}, learnt=supervised)
    parts = (changed.laws, changed.learnt, *changed.tails.values())
    assert not [a for part in parts for a in part if isinstance(a, np.ndarray) and a.flags.writeable]


def test_a_place_that_cannot_be_written(model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot write the model"):
        model.save(tmp_path / "file" / "model")


def test_scores_that_join_the_alert_share_one_budget(model, monkeypatch):
    """Whichever join: a third one takes from the others, and nothing comes on top."""
    three = tuple(replace(score, joins_alert=True) for score in COMPILED)
    for joined in (COMPILED, three):
        monkeypatch.setattr("stream_ccsd.model.model.COMPILED", joined)
        shares = np.exp(-model.budget_offsets())[[score.joins_alert for score in joined]]
        assert shares.sum() == pytest.approx(1.0)
        assert shares[1] == pytest.approx(model.takeover_share)
