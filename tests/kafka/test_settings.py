"""Settings from flags, environment and file, in that order; what does not fit is named."""

import asyncio
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.errors import StreamCcsdError
from stream_ccsd.kafka.client import parse_brokers, parse_target
from stream_ccsd.kafka.faust.metadata import Topic
from stream_ccsd.kafka.ops.metrics import Metrics
from stream_ccsd.kafka.settings import WorkerSettings, WorkerSettingsError
from stream_ccsd.kafka.topics import TopicsError, check_topics, missing_topics
from stream_ccsd.kafka.worker.model_watch import ModelWatch
from stream_ccsd.model.registry import Registry, load_model


def test_flags_come_before_variables_before_the_file(tmp_path):
    file = tmp_path / "worker.toml"
    file.write_text('batch = 10\nweb_port = 1\nscores = "s"\ntls = false\n')
    environment = {"STREAM_CCSD_BATCH": "20", "STREAM_CCSD_WEB_PORT": "2", "STREAM_CCSD_CREATE_TOPICS": "no"}
    found = WorkerSettings.load({"batch": 30, "group": None}, file, environment)
    assert (found.batch, found.web_port, found.scores, found.create_topics) == (30, 2, "s", False)
    assert found.group == WorkerSettings().group


def test_every_setting_can_be_a_variable(tmp_path):
    """As text, whatever its type: what a default is written as, it is read as."""
    defaults = WorkerSettings()
    environment = {}
    for field in fields(WorkerSettings):
        value = getattr(defaults, field.name)
        if value is not None:
            environment[f"STREAM_CCSD_{field.name.upper()}"] = str(value)
    assert WorkerSettings.load({}, None, environment) == defaults


@given(
    batch=st.integers(1, 10_000),
    commit=st.floats(0.01, 100),
    topic=st.from_regex(r"[a-z0-9._-]{3,30}", fullmatch=True).filter(lambda name: name not in ("scores", "alerts")),
)
def test_a_file_says_what_a_variable_says(tmp_path_factory, batch, commit, topic):
    values = {"batch": batch, "commit_interval": commit, "transactions": "in-" + topic}
    file = tmp_path_factory.mktemp("settings") / "w.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    environment = {f"STREAM_CCSD_{name.upper()}": str(value) for name, value in values.items()}
    assert WorkerSettings.load({}, file, {}) == WorkerSettings.load({}, None, environment)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch": 0}, "batch is 0"),
        ({"batch": "many"}, "STREAM_CCSD_BATCH"),
        ({"store": "paper"}, "one of rocksdb, memory"),
        ({"guarantee": "none"}, "effectively-once"),
        ({"scores": "a b"}, "scores is 'a b'"),
        ({"scores": "alerts"}, "six different names"),
        ({"broker": "localhost"}, "expected kafka://"),
        ({"create_topics": "perhaps"}, "true or false"),
        ({"heartbeat_interval": 9}, "at most half"),
        ({"commit_interval": 0}, "commit_interval"),
        ({"web_port": 70000}, "0 to 65535"),
        ({"web_host": " "}, "0.0.0.0 is every one"),
        ({"partitions": "9" * 400}, "at most 100000"),
        ({"session_timeout": "9" * 400}, "seconds, above 0"),
        ({"threshold": "inf"}, "threshold is inf"),
        ({"explore": "1.5"}, "explore is 1.5, expected a share from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_named(values, said):
    environment = {f"STREAM_CCSD_{name.upper()}": str(value) for name, value in values.items()}
    with pytest.raises(StreamCcsdError, match=said):
        WorkerSettings.load({}, None, environment)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bacht = 3", "unknown setting 'bacht'"),
        ('sasl_password = "x"', "STREAM_CCSD_SASL_PASSWORD"),
        ("batch = true", "expected a number"),
        ("batch = 10.5", "whole number"),
        ("threshold = nan", "threshold is nan"),
        ('ca_file = ""', "expected a path"),
        ("batch =", "cannot be read"),
        ('web_host = ""', "0.0.0.0 is every one"),
        ("session_timeout = " + "9" * 400, "session_timeout is 99"),
        ("session_timeout = " + "9" * 5000, "cannot be read"),
        ("batch = " + "[" * 100_000, "cannot be read"),
    ],
)
def test_files_that_do_not_fit(tmp_path, text, said):
    file = tmp_path / "w.toml"
    file.write_text(text)
    with pytest.raises(WorkerSettingsError, match=said):
        WorkerSettings.load({}, file, {})


def test_the_password_comes_from_a_file_or_a_variable(tmp_path):
    file = tmp_path / "password"
    file.write_text("secret\n")
    told = {"sasl_mechanism": "PLAIN", "sasl_username": "u"}
    by_file = WorkerSettings(sasl_password_file=file, **told).security({})
    by_variable = WorkerSettings(**told).security({"STREAM_CCSD_SASL_PASSWORD": "secret"})
    assert by_file.sasl_password == by_variable.sasl_password == "secret"
    assert "secret" not in repr(WorkerSettings(sasl_password_file=file, **told))
    with pytest.raises(WorkerSettingsError, match="cannot be read"):
        WorkerSettings(sasl_password_file=Path("none"), **told).security({})


def test_a_changelog_has_the_partitions_of_its_topic():
    settings = WorkerSettings(partitions=3)
    found = {settings.transactions: Topic(4)}
    assert missing_topics(settings, found)[settings.changelog] == 4
    assert missing_topics(settings, {})[settings.transactions] == 3
    with pytest.raises(TopicsError, match="would lose their state"):
        check_topics(settings, {settings.transactions: Topic(4), settings.changelog: Topic(3)})


@pytest.mark.parametrize("url", ["kafka://a:1", "kafka://a:1,b:2", "kafka://a:1/"])
def test_brokers(url):
    assert parse_brokers(url) == url.removeprefix("kafka://").rstrip("/")


@pytest.mark.parametrize("url", ["a:1", "kafka://a", "kafka://a:1,", "kafka://a:1/t", "http://a:1"])
def test_brokers_that_are_none(url):
    with pytest.raises(StreamCcsdError, match="expected kafka://"):
        parse_brokers(url)


def test_targets():
    assert parse_target("kafka://a:1,b:2/t") == ("a:1,b:2", "t")


def test_a_suffix_parts_a_challenger_from_the_champion(tmp_path):
    """Only what is read is shared."""
    champion = WorkerSettings(group="g", scores="s")
    challenger = WorkerSettings.load(
        {"suffix": "challenger"}, None, {"STREAM_CCSD_GROUP": "g", "STREAM_CCSD_SCORES": "s"}
    )
    assert challenger.transactions == champion.transactions
    assert challenger.changelog == "g-challenger-accounts-changelog"
    assert (challenger.group, challenger.scores) == ("g-challenger", "s-challenger")
    written = [{s.scores, s.alerts, s.dead_letters, s.changelog, s.group} for s in (champion, challenger)]
    assert not written[0] & written[1]
    assert replace(challenger, batch=7).scores == "s-challenger"  # once, however often settings are made of settings
    with pytest.raises(WorkerSettingsError, match="group is 'g-a b'"):
        WorkerSettings(group="g", suffix="a b")


def watch_of(folder, model):
    used = []
    return ModelWatch(folder, model, used.append, Metrics()), used


def test_a_watch_follows_the_current_version(model, tmp_path):
    versions = Registry(tmp_path / "v")
    first = versions.add(model)
    watch, used = watch_of(versions.folder, load_model(versions.folder))
    assert not asyncio.run(watch.look())
    newer = replace(model, threshold=model.threshold + 1.0)
    versions.add(newer)
    assert asyncio.run(watch.look())
    assert not asyncio.run(watch.look())
    versions.rollback()
    assert asyncio.run(watch.look())
    versions.add(replace(model, threshold=model.threshold + 2.0))  # pinned: nothing follows
    assert not asyncio.run(watch.look())
    assert [m.version for m in used] == [newer.version, model.version]
    assert versions.current() == first


def test_a_watch_refuses_a_broken_version_and_takes_the_next(model, tmp_path, caplog):
    versions = Registry(tmp_path / "v")
    versions.add(model)
    watch, used = watch_of(versions.folder, model)
    broken = versions.folder / versions.add(replace(model, threshold=8.0))
    (broken / "laws.arrow").unlink()
    for _ in range(3):
        assert not asyncio.run(watch.look())
    (reason,) = [r.reason for r in caplog.records if "not used" in r.message]
    assert "laws.arrow" in reason
    versions.add(replace(model, threshold=9.0))
    assert asyncio.run(watch.look())
    assert [m.threshold for m in used] == [9.0]


def test_a_watch_tells_once_that_nobody_knows_the_current_version(model, tmp_path, caplog):
    versions = Registry(tmp_path / "v")
    versions.add(model)
    watch, used = watch_of(versions.folder, model)
    (versions.folder / "current.json").write_text("{")
    for _ in range(3):
        assert not asyncio.run(watch.look())
    assert [r.reason for r in caplog.records if "not used" in r.message][1:] == []
    assert "current.json" in caplog.records[-1].reason
    (versions.folder / "current.json").unlink()
    versions.add(replace(model, threshold=9.0))
    assert asyncio.run(watch.look())
    assert len(used) == 1


def test_a_watch_goes_on_without_a_model_of_wrong_contents(model, tmp_path, caplog):
    """Its hashes are right, since whoever wrote it made them."""
    versions = Registry(tmp_path / "v")
    versions.add(model)
    watch, used = watch_of(versions.folder, model)
    astray = model.laws._replace(amount_start=model.laws.amount_start[::-1].copy())
    versions.add(replace(model, laws=astray, threshold=model.threshold + 0.5))
    for _ in range(2):
        assert not asyncio.run(watch.look())
    (told,) = (r.reason for r in caplog.records if "not used" in r.message)
    assert "laws.arrow: amount_start: expected" in told
    better = replace(model, threshold=model.threshold + 1.0)
    versions.add(better)
    assert asyncio.run(watch.look())
    assert [m.version for m in used] == [better.version]
