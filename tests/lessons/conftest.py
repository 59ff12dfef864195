import pytest

from offline.fraud.drift import CATEGORY, FACTOR, SHIFT_DAY, Town
from replay.simulator import PriceShift
from stream_ccsd.engine import Engine

# Small, but large enough for a change of one category to stand out.
SMALL_TOWN = Town(fitted=60, streamed=150, days=90, seed=2)


@pytest.fixture(scope="package")
def calm_model():
    """Of a small town before anything changed."""
    return SMALL_TOWN.model()


@pytest.fixture(scope="package")
def calm(calm_model):
    """Results of a town in which nothing changes."""
    return Engine(calm_model).process_many(SMALL_TOWN.transactions()[1])


@pytest.fixture(scope="package")
def dearer(calm_model):
    """Results of a town in which one category becomes dearer."""
    shift = PriceShift(SHIFT_DAY, FACTOR, CATEGORY)
    return Engine(calm_model).process_many(SMALL_TOWN.transactions(shift)[1])
