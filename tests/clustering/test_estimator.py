import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from stream_ccsd import DivergenceKMedoids
from stream_ccsd.divergence import pairwise_divergence


@parametrize_with_checks([DivergenceKMedoids(n_clusters=3, n_init=2, output="value", standardise=False)])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def waves():
    t, rng = np.linspace(0, 12, 60), np.random.default_rng(0)
    return np.vstack([np.sin((1 + k) * t) + 0.2 * rng.normal(size=60) for k in (0, 1, 2) for _ in range(8)])


def test_finds_the_waves_without_a_given_bandwidth(waves):
    model = DivergenceKMedoids(n_clusters=3, random_state=0).fit(waves)
    assert sorted(len(set(model.labels_[i : i + 8])) for i in (0, 8, 16)) == [1, 1, 1]
    assert model.bandwidths_.output in ("slope", "both")
    np.testing.assert_array_equal(model.predict(waves), model.labels_)
    np.testing.assert_array_equal(model.cluster_centers_, waves[model.medoid_indices_])


def test_a_prediction_does_not_depend_on_its_neighbours(waves):
    model = DivergenceKMedoids(n_clusters=3, random_state=0).fit(waves)
    together = model.transform(waves)
    np.testing.assert_allclose([model.transform(w[None])[0] for w in waves], together, atol=1e-6)


def test_precomputed_distances_give_the_same_clusters(waves):
    options = {"n_clusters": 3, "random_state": 1}
    known = DivergenceKMedoids(output="value", tau=2.0, sigma=1.0, standardise=False, **options).fit(waves)
    matrix = pairwise_divergence(waves, tau=2.0, sigma=1.0, weighting="one-sided")
    given = DivergenceKMedoids(metric="precomputed", **options).fit(np.sqrt(np.maximum(matrix, 0)))
    np.testing.assert_array_equal(given.labels_, known.labels_)
    np.testing.assert_array_equal(given.predict(np.sqrt(np.maximum(matrix, 0))[:5]), known.labels_[:5])
    options |= {"neighbours": None}
    plain = DivergenceKMedoids(output="value", tau=2.0, sigma=1.0, standardise=False, root=False, **options).fit(waves)
    given = DivergenceKMedoids(metric="precomputed", **options).fit(matrix)
    np.testing.assert_array_equal(given.predict(matrix[:5]), plain.labels_[:5])
    np.testing.assert_array_equal(given.labels_, plain.labels_)
    assert plain.inertia_ == pytest.approx(given.inertia_)


def test_unequal_lengths_missing_values_and_pipelines(waves):
    ragged = [w[: 60 - i % 7] for i, w in enumerate(waves)]
    holes = waves.copy()
    holes[::3, 10:14] = np.nan
    whole = DivergenceKMedoids(n_clusters=3, output="both", tau=2.0, sigma=(1.0, 1.0), random_state=0)
    for series in (ragged, holes):
        model = clone(whole).fit(series)
        assert sorted(len(set(model.labels_[i : i + 8])) for i in (0, 8, 16)) == [1, 1, 1]
        assert (model.predict(series) == model.labels_).all()
    piped = make_pipeline(FunctionTransformer(lambda x: x * 2), whole).fit(waves)
    assert len(set(piped.predict(waves))) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "dtw"}, "ccsd or precomputed"),
        ({"criterion": "gap"}, "agreement, silhouette"),
        ({"neighbours": 0}, "neighbours must be at least 1"),
        ({"n_clusters": 99}, "n_clusters=99"),
        ({"sigma": 1.0}, "name an output"),
        ({"sigma": 1.0, "output": "both"}, "take two"),
        ({"sigma": (1.0, 2.0), "output": "value"}, "take one"),
    ],
)
def test_refuses(waves, options, message):
    with pytest.raises(ValueError, match=message):
        DivergenceKMedoids(**{"n_clusters": 2, **options}).fit(waves)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e150, 1e300])
def test_the_scale_of_series_does_not_matter(waves, scale):
    model = DivergenceKMedoids(n_clusters=3, random_state=0)
    np.testing.assert_array_equal(clone(model).fit(waves * scale).labels_, clone(model).fit(waves).labels_)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("value", "message"), [(np.inf, "infinit"), (np.nan, "series 3 has no value")])
def test_a_series_that_cannot_be_compared_is_named(waves, ragged, value, message):
    spoilt = waves.copy()
    spoilt[3] = value
    given = [row[: 60 - i % 2] for i, row in enumerate(spoilt)] if ragged else spoilt
    with pytest.raises(ValueError, match=message):
        DivergenceKMedoids(n_clusters=3).fit(given)
    fitted = DivergenceKMedoids(n_clusters=3, tau=2.0, sigma=1.0, output="value").fit(waves)
    with pytest.raises(ValueError, match=message):
        fitted.predict(given)


def test_an_empty_series_is_named(waves):
    given = [*waves[:5], np.empty(0), *waves[5:]]
    with pytest.raises(ValueError, match="series 5 has no value"):
        DivergenceKMedoids(n_clusters=3).fit(given)
