"""Batches under way together: none passes the one before it, and whenever a worker dies, nothing is lost or changed."""

import asyncio
import json

import pytest

from stream_ccsd.kafka.codec import TOPIC
from stream_ccsd.kafka.ops.metrics import Metrics
from stream_ccsd.kafka.settings import WorkerSettings
from stream_ccsd.kafka.worker.guarantee import Processor
from stream_ccsd.kafka.worker.scoring import PartitionScorer
from stream_ccsd.transaction import Schema
from tests.kafka.test_scoring import Store, records, straight  # noqa: F401  (fixtures)

SIZE = 20
# All batches are full, so that each is begun while others are on their way.
SETTINGS = WorkerSettings(batch=SIZE)


class DeadError(Exception):
    """The worker was killed."""


class World:
    """A broker and a disk that outlive workers, which die after so many steps."""

    def __init__(self):
        self.store, self.sent, self.log, self.committed, self.steps = Store(), [], [], 0, None

    def step(self, what):
        if self.steps is not None:
            self.steps -= 1
            if self.steps < 0:
                raise DeadError
        self.log.append(what)

    async def confirm(self, outputs):
        states = bool(outputs) and outputs[0].topic == SETTINGS.changelog
        await asyncio.sleep(
            0.003 if states else 0.001
        )  # states take longer: batches would pass each other if they could
        if not outputs or outputs[0].key == TOPIC:
            return list(range(len(outputs)))
        self.step(("states" if states else "outputs", len(self.log)))
        if not states:
            self.sent += outputs
        return [-1] * len(outputs)

    # What a processor asks of its partitions.

    async def log_end(self, partition):
        return 10_000

    def changelog_end(self, partition):
        return None

    def finished(self, partition, next_offset):
        self.step(("finished", next_offset))
        self.committed = next_offset


async def work(model, world, messages):
    """From the committed offset on, until all is done or the worker dies."""
    processor = Processor(SETTINGS, Schema(), model, lambda: world.store, world.confirm, Metrics(), "one")
    processor.partitions = world
    together = 0
    try:
        for start in range(world.committed, len(messages), SIZE):
            await processor.handle({0: messages[start : start + SIZE]})
            together = max(together, len(processor._under_way))
    except DeadError:
        pass
    await processor.settled()
    processor.close()
    if processor.failure is not None and not isinstance(processor.failure, DeadError):
        raise processor.failure
    return together


def stored(world):
    return {account: state for (_, account), state in world.store.states.items() if account != TOPIC}


def test_batches_are_under_way_together_and_in_order(model, records, straight):  # noqa: F811
    world = World()
    together = asyncio.run(work(model, world, records))
    outputs, _ = straight
    assert together > 1
    assert [(o.topic, o.value) for o in world.sent if o.topic == SETTINGS.scores] == [
        (o.topic, o.value) for o in outputs if o.topic == SETTINGS.scores
    ]
    kinds = [kind for kind, _ in world.log]
    batches = len(records) // SIZE
    assert (kinds.count("outputs"), kinds.count("states"), kinds.count("finished")) == (batches,) * 3
    for i in range(len(kinds)):  # at any moment, no more states than outputs, and no more offsets than states
        seen = kinds[: i + 1]
        assert seen.count("outputs") >= seen.count("states") >= seen.count("finished")
    assert [at for kind, at in world.log if kind == "finished"] == list(range(SIZE, len(records) + 1, SIZE))
    assert kinds != ["outputs", "states", "finished"] * batches  # they do overlap


@pytest.mark.parametrize("life", [1, 2, 3, 4, 5, 7, 11, 16, 23])
def test_a_worker_that_dies_after_any_number_of_steps(model, records, straight, life):  # noqa: F811
    world = World()
    for _ in range(200):
        before, world.steps = world.committed, life
        asyncio.run(work(model, world, records))
        if world.committed >= len(records):
            break
        if world.committed == before:  # too short a life to finish a batch: the next one lives longer
            world.steps = None
            asyncio.run(work(model, world, records[: world.committed + SIZE]))
    outputs, _ = straight
    assert world.committed == len(records)
    assert {(o.topic, o.key, o.value) for o in world.sent} == {(o.topic, o.key, o.value) for o in outputs}
    states = {}
    run = PartitionScorer(model, SETTINGS, Schema(), states.get)
    for start in range(0, len(records), SIZE):
        states.update(run.score(records[start : start + SIZE]).states)
    assert stored(world) == states


def test_nothing_is_sent_behind_a_batch_that_failed(model, records):  # noqa: F811
    world = World()
    world.steps = 4
    asyncio.run(work(model, world, records))
    positions = [json.loads(o.value)["position"] for o in world.sent if o.topic == SETTINGS.scores]
    assert positions == list(range(len(positions)))
    assert SIZE <= len(positions) <= 3 * SIZE
