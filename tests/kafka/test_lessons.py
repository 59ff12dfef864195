"""Lessons into a folder: repeated or held, the same models; no broker is needed for that."""

from dataclasses import fields

import numpy as np
import pytest

from replay.simulator import simulate
from stream_ccsd.engine import Engine
from stream_ccsd.kafka.agenda import Agenda, Lesson
from stream_ccsd.kafka.heard import parse_score
from stream_ccsd.kafka.learn_command import chosen_schedule
from stream_ccsd.kafka.lessons import Folder, first_model
from stream_ccsd.kafka.messages import score_messages
from stream_ccsd.kafka.metrics import LearnerMetrics
from stream_ccsd.lessons.learner import Learner, listening
from stream_ccsd.lessons.rows import Rows, model_inputs
from stream_ccsd.lessons.schedule import Schedule
from stream_ccsd.library.model import ModelError
from stream_ccsd.library.versions import Versions
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
def lessons(scored):
    stream, _, records = scored
    agenda = Agenda(SCHEDULE, idle=1e9)
    for t in stream.transactions:
        if t.id in stream.fraud:
            agenda.enter_verdict(Verdict(t.id, t.account, "fraud", "ann", t.time + 2.0))
    found = []
    for now, record in enumerate(records):
        while (lesson := agenda.next(now)) is not None:
            found.append(lesson)
        agenda.enter_score(now, 0, record)
    return found


def begin(model, folder):
    Versions(folder).add(model)
    return Folder(folder, first_model(folder), SCHEDULE, LearnerMetrics())


@pytest.fixture(scope="module")
def undisturbed(model, lessons, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "versions"
    learning = begin(model, folder)
    for lesson in lessons:
        learning.hold(lesson)
    names = Versions(folder).names()
    assert len(names) > 3
    return names


def test_a_score_off_a_topic_teaches_what_its_result_does(model, scored):
    _, results, records = scored
    seen, read = Rows.of(results, model), Rows.of_records(records, model)
    for column in fields(Rows):
        if column.name != "texts":
            np.testing.assert_array_equal(getattr(seen, column.name), getattr(read, column.name))


def test_the_folder_holds_what_a_learner_in_one_process_makes(model, scored, lessons, undisturbed):
    _, results, _ = scored
    learner, versions, unseen = Learner(model, SCHEDULE), [model.version], list(results)
    for lesson in lessons:
        learner.see(r for r in unseen if r.transaction.time < lesson.moment)
        unseen = [r for r in unseen if r.transaction.time >= lesson.moment]
        learner.hear(lesson.verdicts)
        versions.append(learner.learn(lesson.moment).version)
    known = dict.fromkeys(version for version in versions if version != listening(model).version)
    assert undisturbed == [f"{number:04d}-{version}" for number, version in enumerate(known, 1)]


def test_begun_anew_before_every_lesson_the_same_models_come_out(model, lessons, undisturbed, tmp_path):
    for count in range(len(lessons) + 1):
        learning = begin(model, tmp_path / "versions")
        for lesson in lessons[:count]:
            learning.hold(lesson)
    assert Versions(tmp_path / "versions").names() == undisturbed


def test_a_pinned_folder_gets_versions_and_does_not_use_them(model, lessons, undisturbed, tmp_path):
    versions = Versions(tmp_path / "versions")
    learning = begin(model, versions.folder)
    versions.pin("1")
    for lesson in lessons:
        learning.hold(lesson)
    assert versions.names() == undisturbed
    assert versions.current() == undisturbed[0]
    for number in range(1, 31):  # a stream that jumps: as long as silence begins to count, then nothing more
        learning.hold(Lesson(lessons[-1].moment + number * SCHEDULE.every, [], []))
    assert len(versions.names()) <= len(undisturbed) + 1


def test_old_versions_that_were_deleted_do_not_come_back(model, lessons, undisturbed, tmp_path):
    versions = Versions(tmp_path / "versions")
    learning = begin(model, versions.folder)
    for lesson in lessons[:-1]:
        learning.hold(lesson)
    for file in (versions.folder / undisturbed[1]).iterdir():
        file.unlink()
    learning = begin(model, versions.folder)
    for lesson in lessons:
        learning.hold(lesson)
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
