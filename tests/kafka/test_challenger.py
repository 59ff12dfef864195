"""Champion and challenger on one topic: two groups of workers, and each says what one process says."""

from copy import copy
from dataclasses import replace

from stream_ccsd.learning.learner import listening
from stream_ccsd.model.registry import Registry
from tests.kafka.cluster import Expectation, messages


def test_a_challenger_is_a_group_of_its_own(cluster, many, model, tmp_path):
    """It is given a folder of versions, and scores by the pinned one."""
    part = many[:4000]
    other = replace(model, threshold=model.threshold - 1.5, sigma_y=model.sigma_y * 2)
    versions = Registry(tmp_path / "versions")
    name = versions.add(other)
    versions.add(replace(other, threshold=other.threshold - 1.0))
    versions.pin(name)
    challenger = copy(cluster)
    challenger.settings = replace(cluster.settings, suffix="challenger")
    workers = [cluster.worker("a"), cluster.worker("b", suffix="challenger", model=versions.folder)]
    for worker in workers:
        worker.wait_until_ready()
    cluster.send(messages(part))
    for side, own in ((cluster, model), (challenger, listening(other))):  # models of a folder of versions can learn
        side.wait_until_done(len(part))
        expected = Expectation(own, part)
        assert expected.alerts
        expected.check(side, exactly_once_each=True)
    assert len(Expectation(model, part).alerts) != len(Expectation(other, part).alerts)
    assert [worker.stop() for worker in workers] == [0, 0]
