"""Model updates into a folder: repeated or made, the same models; no broker is needed for that."""

from dataclasses import fields, replace

import numpy as np
import pytest

from replay.sources.simulator.population import simulate
from stream_ccsd.engine import Engine
from stream_ccsd.kafka.codec import parse_score, score_messages
from stream_ccsd.kafka.commands import chosen_schedule
from stream_ccsd.kafka.learner.updates import UpdateFolder, first_model
from stream_ccsd.kafka.learner.watermark import UpdateBatch, Watermark
from stream_ccsd.kafka.ops.metrics import LearnerMetrics
from stream_ccsd.learning.features import Features, model_inputs
from stream_ccsd.learning.learner import Learner, listening
from stream_ccsd.learning.schedule import Schedule
from stream_ccsd.model.model import ModelError
from stream_ccsd.model.registry import Registry
from stream_ccsd.verdict import Verdict

SCHEDULE = Schedule(every=7.0, delay=5.0)


class Place:
    topic, partition, timestamp = "transactions", 0, 0

    def __init__(self, offset):
        self.offset = offset


@pytest.fixture(scope="module")
def scored(model):
    """Results of one model, and their records as they are read off a topic."""
    stream = simulate(accounts=60, days=45, fraud_share=0.5, seed=9)
    results = Engine(listening(model)).process_many(stream.transactions)
    messages = score_messages([Place(i) for i in range(len(results))], results)
    return stream, results, [parse_score(message, model_inputs(model)) for message in messages]


@pytest.fixture(scope="module")
def updates(scored):
    stream, _, records = scored
    watermark = Watermark(SCHEDULE, idle=1e9)
    for t in stream.transactions:
        if t.id in stream.fraud:
            watermark.enter_verdict(Verdict(t.id, t.account, "fraud", "ann", t.time + 2.0))
    found = []
    for now, record in enumerate(records):
        while (update := watermark.next(now)) is not None:
            found.append(update)
        watermark.enter_score(now, 0, record)
    return found


def begin(model, folder):
    Registry(folder).add(model)
    return UpdateFolder(folder, first_model(folder), SCHEDULE, LearnerMetrics())


def moment_of(versions):
    """Of the model update whose model is in use."""
    return next((moment for moment, name in versions.lessons().items() if name == versions.current()), None)


@pytest.fixture(scope="module")
def undisturbed(model, updates, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "versions"
    learning = begin(model, folder)
    for update in updates:
        learning.hold(update)
    names = Registry(folder).names()
    assert len(names) > 3
    return names


def test_a_score_off_a_topic_is_learnt_from_as_its_result_is(model, scored):
    _, results, records = scored
    seen, read = Features.of(results, model), Features.of_records(records, model)
    for column in fields(Features):
        if column.name != "texts":
            np.testing.assert_array_equal(getattr(seen, column.name), getattr(read, column.name))


def test_the_folder_holds_what_a_learner_in_one_process_makes(model, scored, updates, undisturbed):
    _, results, _ = scored
    learner, versions, unseen = Learner(model, SCHEDULE), [model.version], list(results)
    for update in updates:
        learner.see(r for r in unseen if r.transaction.time < update.moment)
        unseen = [r for r in unseen if r.transaction.time >= update.moment]
        learner.hear(update.verdicts)
        versions.append(learner.learn(update.moment).version)
    known = dict.fromkeys(version for version in versions if version != listening(model).version)
    assert undisturbed == [f"{number:04d}-{version}" for number, version in enumerate(known, 1)]


def test_begun_anew_before_every_update_the_same_models_come_out(model, updates, undisturbed, tmp_path):
    for count in range(len(updates) + 1):
        learning = begin(model, tmp_path / "versions")
        for update in updates[:count]:
            learning.hold(update)
    assert Registry(tmp_path / "versions").names() == undisturbed


def test_a_pinned_folder_gets_versions_and_does_not_use_them(model, updates, undisturbed, tmp_path):
    versions = Registry(tmp_path / "versions")
    learning = begin(model, versions.folder)
    versions.pin("1")
    for update in updates:
        learning.hold(update)
    assert versions.names() == undisturbed
    assert versions.current() == undisturbed[0]
    for number in range(1, 31):  # a stream that jumps: as long as silence begins to count, then nothing more
        learning.hold(UpdateBatch(updates[-1].moment + number * SCHEDULE.every, [], []))
    assert len(versions.names()) <= len(undisturbed) + 1


def test_old_versions_that_were_deleted_do_not_come_back(model, updates, undisturbed, tmp_path):
    versions = Registry(tmp_path / "versions")
    learning = begin(model, versions.folder)
    for update in updates[:-1]:
        learning.hold(update)
    for file in (versions.folder / undisturbed[1]).iterdir():
        file.unlink()
    learning = begin(model, versions.folder)
    for update in updates:
        learning.hold(update)
    assert versions.names() == [undisturbed[0], *undisturbed[2:]]


def test_a_folder_without_a_fitted_model_says_so(tmp_path, model_folder):
    for folder in (tmp_path / "nothing", model_folder):
        with pytest.raises(ModelError, match="models add MODEL"):
            first_model(folder)


def test_schedules_in_words():
    from stream_ccsd.calendar import Calendar

    seconds = Calendar("seconds")
    assert chosen_schedule("daily", "7d", seconds) == Schedule(86400.0, 7 * 86400.0)
    assert chosen_schedule("6h", "0", seconds) == Schedule(6 * 3600.0, 0.0)
    assert chosen_schedule("10", "5", Calendar()) == Schedule(10.0, 5.0)


def test_learners_that_differ_never_put_an_older_moment_in_front(model, updates, tmp_path):
    """Learners of other verdicts, as those that add up in another order: one line of models, which all go on from."""
    versions = Registry(tmp_path / "versions")
    quick = begin(model, versions.folder)
    slow = UpdateFolder(versions.folder, first_model(versions.folder), SCHEDULE, LearnerMetrics())
    deaf = [replace(update, verdicts=update.verdicts[::2]) for update in updates]
    in_use = []
    for number, update in enumerate(updates):
        quick.hold(update)
        in_use.append(moment_of(versions))
        if number >= 2:  # two model updates behind
            slow.hold(deaf[number - 2])
            in_use.append(moment_of(versions))
    for update in deaf[-2:]:
        slow.hold(update)
        in_use.append(moment_of(versions))
    moments = [moment for moment in in_use if moment is not None]
    assert moments == sorted(moments)
    assert len(set(moments)) > 3
    assert len(versions.names()) == 1 + len(versions.lessons())  # one a moment
    assert slow.learner.model.version == quick.learner.model.version == versions.load().version


def test_both_at_once_the_first_counts_and_both_go_on_from_it(model, updates, tmp_path, monkeypatch):
    versions = Registry(tmp_path / "versions")
    one = begin(model, versions.folder)
    other = UpdateFolder(versions.folder, first_model(versions.folder), SCHEDULE, LearnerMetrics())
    for update in updates[:3]:
        before = Registry(versions.folder).lessons()
        one.hold(update)
        with monkeypatch.context() as patched:  # it looked before the other wrote
            known = other._versions.lessons
            patched.setattr(other._versions, "lessons", lambda before=before, known=known: [before, known()][looked(1)])
            looks = iter(range(100))

            def looked(most, looks=looks):
                return min(most, next(looks))

            other.hold(replace(update, verdicts=update.verdicts[::2]))
        assert other.learner.model.version == one.learner.model.version
    assert len(versions.names()) == 1 + len(versions.lessons()) > 1


@pytest.mark.parametrize("damage", ["laws.arrow", "model.json"])
def test_a_broken_version_is_refused_and_learnt_again(model, updates, undisturbed, tmp_path, caplog, damage):
    versions = Registry(tmp_path / "versions")
    learning = begin(model, versions.folder)
    for update in updates[:-1]:
        learning.hold(update)
    broken = versions.folder / undisturbed[-2] / damage
    broken.unlink()  # it has another name in other versions
    broken.write_text("{")
    learning = begin(model, versions.folder)
    for update in updates:
        learning.hold(update)
    again = [name.partition("-")[2] for name in undisturbed[-2:]]
    assert [name.partition("-")[2] for name in versions.names()[len(undisturbed) - 1 :]] == again
    assert versions.load().version == again[-1]
    assert "do not hold what" not in caplog.text
    if damage == "laws.arrow":
        assert "a model of the folder is not used" in caplog.text


def test_topics_that_lost_their_past_go_on_from_the_newest_model(model, updates, tmp_path, caplog):
    """One verdict does not replace what was learnt from many, until there are as many again or all of it is old."""
    versions = Registry(tmp_path / "versions")
    learning = begin(model, versions.folder)
    for update in updates[:-1]:
        learning.hold(update)
    names, newest = versions.names(), versions.load()
    frauds = newest.facts["lessons"]["frauds"]
    assert frauds > 30
    metrics = LearnerMetrics()
    for left in (updates[-1:], updates[-2:]):  # as if all before had been deleted: the newest is repeated or not
        learning = UpdateFolder(versions.folder, first_model(versions.folder), SCHEDULE, metrics)
        for update in left[:-1]:
            learning.hold(replace(update, verdicts=[]))
        known = {record["id"]: record["account"] for record in left[-1].scores}
        one = Verdict(*next(iter(known.items())), "fraud", "ann", left[-1].moment)
        learning.hold(replace(left[-1], verdicts=[one]))
        assert versions.names() == names
        assert learning.learner.model.version == newest.version
    assert metrics.registry.get_sample_value("stream_ccsd_learner_held_back_models_total") == 2
    assert "the topics do not hold what the newest model was learnt from" in caplog.text
    # As many frauds again: a model is added, which goes on from the newest.
    last = updates[-1]
    many = [Verdict(record["id"], record["account"], "fraud", "ann", last.moment) for record in last.scores[:frauds]]
    assert len(many) == frauds
    learning = UpdateFolder(versions.folder, first_model(versions.folder), SCHEDULE, metrics)
    learning.hold(replace(last, verdicts=many))
    assert versions.load().facts["lessons"]["before"] == newest.version
    assert versions.load().facts["lessons"]["frauds"] >= 0.9 * frauds
