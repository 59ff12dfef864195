"""A folder of model versions: whole or not there, in the order they were added, pinned and rolled back by people."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from stream_ccsd.cli.main import app
from stream_ccsd.model.model import Model, ModelError
from stream_ccsd.model.registry import Registry, is_registry, load_model


def variants(model, count):
    """Models that differ in nothing but what they were measured at."""
    return [replace(model, facts={**model.facts, "measured": {"ap": number / 10}}) for number in range(count)]


@pytest.fixture
def three(model, tmp_path):
    versions = Registry(tmp_path / "versions")
    models = variants(model, 3)
    return versions, models, [versions.add(m) for m in models]


def test_the_newest_is_in_use(three):
    versions, models, names = three
    assert names == [f"{n:04d}-{m.version}" for n, m in enumerate(models, 1)]
    assert versions.names() == names
    assert versions.current() == names[-1]
    assert versions.load().version == load_model(versions.folder).version == models[-1].version
    assert versions.load(names[0]).version == models[0].version


def test_a_version_that_is_there_is_not_added_again(three):
    versions, models, names = three
    before = (versions.folder / names[0] / "model.json").stat()
    assert versions.add(models[0]) == names[0]
    after = (versions.folder / names[0] / "model.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert versions.names() == names
    assert versions.current() == names[-1]  # a learner that is run again does not go back


def test_a_pinned_folder_is_not_advanced(three, model):
    versions, _, names = three
    assert versions.pin("1", who="Ada") == names[0]
    assert versions.current() == names[0]
    added = versions.add(replace(model, facts={"library_windows": 0, "measured": {"ap": 0.9}}))
    assert versions.current() == names[0]
    assert versions.unpin(who="Bea") == added == versions.current()
    history = versions.choice().history
    assert [(e["what"], e["name"], e["before"], e["who"]) for e in history] == [
        ("pin", names[0], None, "Ada"),
        ("unpin", None, names[0], "Bea"),
    ]
    assert all(entry["when"] for entry in history)
    assert versions.unpin() == added
    assert len(versions.choice().history) == 2  # nothing was decided by that


def test_rollback_goes_one_back_and_stays_there(three):
    versions, _, names = three
    assert versions.rollback() == names[1]
    assert versions.rollback() == names[0] == versions.current()
    with pytest.raises(ModelError, match="nothing to go back to"):
        versions.rollback()
    assert [entry["name"] for entry in versions.choice().history] == [names[1], names[0]]


@pytest.mark.parametrize("call", [lambda n, m: n, lambda n, m: m.version, lambda n, m: "2", lambda n, m: "0002"])
def test_a_version_has_several_names(three, call):
    versions, models, names = three
    assert versions.find(call(names[1], models[1])) == names[1]


@pytest.mark.parametrize("name", ["9", "", "..", "none", "0001-", "a\0b"])
def test_a_version_that_is_none(three, name):
    with pytest.raises(ModelError, match="no version"):
        three[0].pin(name)


def test_what_each_was_made_from_and_measured_at(three, model):
    versions, models, names = three
    facts = {"moment": 12.0, "frauds": 3, "normals": 40, "likelihood": -1.5}
    learnt = versions.add(replace(models[0], facts={**models[0].facts, "lessons": facts}))
    (versions.folder / names[1] / "model.json").write_text("{}")
    rows = {row["name"]: row for row in versions.describe()}
    assert list(rows) == [*names, learnt]
    assert rows[names[0]]["measured"] == {"ap": 0.0}
    assert rows[names[0]]["made_from"]["accounts"] == model.facts["accounts"]
    assert rows[learnt]["lessons"] == facts
    assert [row["current"] for row in rows.values()] == [False, False, False, True]
    assert "does not describe" in rows[names[1]]["problem"]


def test_a_single_model_is_no_folder_of_versions(model, tmp_path):
    model.save(tmp_path / "m" / "one")
    assert not is_registry(tmp_path / "m" / "one")
    assert is_registry(tmp_path / "m")  # whatever its folders are called
    assert Registry(tmp_path / "m").current() == "one"
    assert Registry(tmp_path / "m").add(model) == "one"
    assert load_model(tmp_path / "m" / "one").version == load_model(tmp_path / "m").version == model.version
    with pytest.raises(ModelError, match="is a model itself"):
        Registry(tmp_path / "m" / "one").add(model)
    for place in (tmp_path / "none", tmp_path / "m" / "one" / "model.json"):
        with pytest.raises(ModelError, match=r"no model at|cannot be read"):
            load_model(place)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"format": "x"}'])
def test_a_damaged_pointer_is_not_guessed(three, text):
    versions, _, _ = three
    versions.pin("1")
    (versions.folder / "current.json").write_text(text)
    for ask in (versions.current, versions.rollback, lambda: load_model(versions.folder)):
        with pytest.raises(ModelError, match=r"current\.json cannot be read"):
            ask()
    (versions.folder / "current.json").unlink()
    assert versions.current() == versions.names()[-1]


def test_a_pinned_version_that_is_gone_is_said(three):
    versions, _, names = three
    versions.pin(names[0])
    (versions.folder / names[0]).rename(versions.folder.parent / "away")
    with pytest.raises(ModelError, match="pinned, which is not there"):
        versions.current()
    versions.unpin()
    assert versions.current() == names[-1]


def add_all(folder, model_folder, facts, begin):
    model = Model.load(model_folder)
    begin.wait()
    for own in facts:
        Registry(folder).add(replace(model, facts={**model.facts, **own}))


def test_two_processes_add_at_once(model, model_folder, tmp_path):
    """Half of what they add is the same; each has its own number, and each is there once."""
    spawn = multiprocessing.get_context("spawn")
    begin, folder = spawn.Event(), tmp_path / "v"
    facts = [[{"measured": {"n": n}} for n in range(start, start + 12)] for start in (0, 6)]
    adders = [spawn.Process(target=add_all, args=(folder, model_folder, own, begin)) for own in facts]
    for adder in adders:
        adder.start()
    begin.set()
    for adder in adders:
        adder.join(120)
        assert adder.exitcode == 0
    versions = Registry(folder)
    assert [int(name[:4]) for name in versions.names()] == list(range(1, 19))
    assert sorted(versions.load(name).facts["measured"]["n"] for name in versions.names()) == list(range(18))


def test_killed_while_adding(model, model_folder, tmp_path):
    """At every moment each version is whole; run again, the same ones are there."""
    spawn = multiprocessing.get_context("spawn")
    folder, chance = tmp_path / "v", random.Random(4)
    facts = [{"measured": {"n": n}} for n in range(400)]
    for _ in range(6):
        begin = spawn.Event()
        begin.set()
        adder = spawn.Process(target=add_all, args=(folder, model_folder, facts, begin))
        adder.start()
        before, deadline = len(Registry(folder).names()), time.monotonic() + 60
        while len(Registry(folder).names()) <= before + 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.03))
        assert adder.is_alive()
        os.kill(adder.pid, signal.SIGKILL)
        adder.join()
        versions = Registry(folder)
        found = [versions.load(name).facts["measured"]["n"] for name in versions.names()]
        assert found == list(range(len(found)))
        assert versions.load().facts["measured"]["n"] == found[-1]
    Registry(folder).pin("1")
    assert sorted(p.name for p in folder.iterdir()) == sorted([*Registry(folder).names(), ".lock", "current.json"])
    assert json.loads((folder / "current.json").read_text())["pinned"] == Registry(folder).names()[0]


def typed(*arguments, code=0):
    done = CliRunner().invoke(app, ["models", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_the_command_lists_adds_pins_and_goes_back(model, model_folder, tmp_path):
    folder = ["--in", tmp_path / "v"]
    first = json.loads(typed("add", model_folder, *folder, "--json", "-").stdout)["version"]
    facts = {"moment": 12.0, "frauds": 3, "by_field": {"amount": 1}}
    second = Registry(tmp_path / "v").add(replace(model, facts={**model.facts, "lessons": facts}))
    listed = json.loads(typed(*folder, "--json", "-").stdout)
    assert [(row["name"], row["current"]) for row in listed["versions"]] == [(first, False), (second, True)]
    assert listed["versions"][1]["lessons"] == facts
    assert "frauds 3" in typed(*folder).output
    assert f"pinned: {first}" in typed("pin", first, *folder).output
    assert json.loads(typed(*folder, "--json", "-").stdout)["pinned"] == first
    assert f"in use: {second}" in typed("unpin", *folder).output
    assert f"rolled back: {first}; in use: {first}" in typed("rollback", *folder).output
    assert [e["what"] for e in json.loads(typed(*folder, "--json", "-").stdout)["history"]] == [
        "pin",
        "unpin",
        "rollback",
    ]


def test_a_mistyped_folder_is_not_made(tmp_path):
    for arguments in (["--in", tmp_path / "none"], ["pin", "1", "--in", tmp_path / "none"], []):
        done = CliRunner().invoke(app, ["models", *map(str, arguments)])
        assert "name the folder" in str(done.exception) or "there are no model versions" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_versions_share_what_did_not_change(three):
    """One file with several names: damage is found in each of them, and removing one leaves the others whole."""
    versions, models, names = three
    shared = [versions.folder / name / "windows.arrow" for name in names]
    assert len({place.stat().st_ino for place in shared}) == 1
    assert len({(versions.folder / name / "model.json").stat().st_ino for name in names}) == 3
    shutil.rmtree(versions.folder / names[0])
    assert [versions.load(name).version for name in names[1:]] == [m.version for m in models[1:]]
    data = bytearray(shared[1].read_bytes())
    data[len(data) // 2] ^= 1
    shared[1].write_bytes(bytes(data))
    for name in names[1:]:
        with pytest.raises(ModelError, match=r"windows\.arrow is damaged"):
            versions.load(name)
    again = versions.add(replace(models[0], facts={**models[0].facts, "measured": {"ap": 0.7}}))
    assert versions.load(again).facts["measured"] == {"ap": 0.7}  # nothing is shared with what is damaged


def test_where_there_are_no_links_versions_are_copies(model, tmp_path, monkeypatch):
    def refused(*names):
        raise OSError("links are not permitted")

    monkeypatch.setattr(os, "link", refused)
    versions = Registry(tmp_path / "v")
    places = [versions.folder / versions.add(m) for m in variants(model, 2)]
    assert len({(place / "windows.arrow").stat().st_ino for place in places}) == 2
    assert len({tuple(sorted(p.name for p in place.iterdir())) for place in places}) == 1
    assert [Model.load(place).facts["measured"]["ap"] for place in places] == [0.0, 0.1]
