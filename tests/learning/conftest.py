import pytest

from offline.fraud.simulated import CATEGORY, FACTOR, SHIFT_DAY, ShiftedPopulation
from replay.run.fitting import simulated_replay
from replay.sources.simulator.population import PriceShift
from stream_ccsd.engine import Engine
from stream_ccsd.settings import Settings
from tests.learning.simulated import BUDGET

# Small, but large enough for a change of one category to stand out.
SMALL_POPULATION = ShiftedPopulation(fitted=60, streamed=150, days=90, seed=2)


@pytest.fixture(scope="package")
def population():
    """A model, the stream it has not seen, and which of it is fraud."""
    settings = Settings(divergence=False, window=10, local_history=10, alert_rate=BUDGET)
    model, source = simulated_replay(350, 40, 1, settings)
    items = [*source.items()]
    return model, [i.parsed for i in items], {i.parsed.id for i in items if i.label}


@pytest.fixture(scope="package")
def plain(population):
    """Its results without learning."""
    model, stream, _ = population
    return Engine(model).process_many(stream)


@pytest.fixture(scope="package")
def calm_model():
    """Of a small population before anything changed."""
    return SMALL_POPULATION.model()


@pytest.fixture(scope="package")
def calm(calm_model):
    """Results of a population in which nothing changes."""
    return Engine(calm_model).process_many(SMALL_POPULATION.transactions()[1])


@pytest.fixture(scope="package")
def dearer(calm_model):
    """Results of a population in which one category becomes dearer."""
    shift = PriceShift(SHIFT_DAY, FACTOR, CATEGORY)
    return Engine(calm_model).process_many(SMALL_POPULATION.transactions(shift)[1])
