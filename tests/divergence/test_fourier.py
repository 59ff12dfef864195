import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_ccsd.divergence import FourierFeatures, TooManyFrequenciesError
from tests import naive


@given(
    st.floats(-1e3, 1e3),
    st.floats(0, 30),
    st.floats(0.05, 1e4),
    st.lists(st.floats(0, 1), min_size=2, max_size=2),
)
def test_products_are_the_kernel(low, width, sigma, shares):
    features = FourierFeatures.for_box([low], [low + width], [sigma])
    points = low + width * np.array(shares)
    phi = features.transform(points[:, None])
    assert phi.shape == (2, features.size)
    np.testing.assert_allclose(phi[0] @ phi[1], naive.gaussian(points[0], points[1], sigma), rtol=0, atol=2e-13)


def test_vectors():
    rng = np.random.default_rng(0)
    points = rng.uniform([-2, 0, 1], [2, 3, 2], size=(6, 3))
    sigma = [0.9, 1.5, 2.0]
    features = FourierFeatures.for_box(points.min(axis=0), points.max(axis=0), sigma, max_frequencies=20_000)
    phi = features.transform(points)
    ref = [[naive.gaussian(a, b, sigma) for b in points] for a in points]
    np.testing.assert_allclose(phi @ phi.T, ref, rtol=0, atol=1e-13)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-12])
def test_the_tolerance_sets_the_number_of_features(tolerance):
    loose = FourierFeatures.for_box([-3], [3], [0.5], tolerance=tolerance)
    assert loose.size < FourierFeatures.for_box([-3], [3], [0.5]).size
    points = np.linspace(-3, 3, 40)
    phi = loose.transform(points[:, None])
    error = np.abs(phi @ phi.T - np.exp(-0.5 * ((points[:, None] - points) / 0.5) ** 2)).max()
    assert tolerance / 1e3 < error < 4 * tolerance


@pytest.mark.parametrize("sigma", [1e-5, 1e-300])
def test_absurd_numbers_of_frequencies_are_refused(sigma):
    with pytest.raises(TooManyFrequenciesError, match="more than 4096"):
        FourierFeatures.for_box([-3], [3], [sigma])


@pytest.mark.parametrize(
    ("low", "high", "sigma", "tolerance"),
    [([0], [-1], [1], 1e-9), ([0], [np.inf], [1], 1e-9), ([0], [1], [0], 1e-9), ([0], [1], [1], 0.0)],
)
def test_refuses(low, high, sigma, tolerance):
    with pytest.raises(ValueError, match="must"):
        FourierFeatures.for_box(low, high, sigma, tolerance=tolerance)
