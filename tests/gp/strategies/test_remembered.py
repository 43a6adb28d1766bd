"""Data that are remembered after their factors were merged."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.process.pseudo_observations import PseudoObservations
from streaming_gp.gp.process.single_observations import SingleObservations, joined, singles
from streaming_gp.gp.strategies import MERGED, every_input, remembered
from streaming_gp.gp.strategies.learning_sample import LearningSample
from tests.gp.builders import assert_same_arrays, known_model, mean_of_two
from tests.reference import smooth_data
from tests.tolerances import ALGEBRA

BUDGET = 40
MOST = remembered.most(BUDGET, 2)


def variational(sample=None):
    return known_model(
        sgp.PrivatePseudoPoints("all", budget=BUDGET, sample=sample),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )


def streamed(model, X, Y, **options):
    for start in range(0, len(X), 30):
        model.update((X[start : start + 30], Y[start : start + 30]), **options)
    return model


def numbered(numbers):
    """Observations that tell which of a stream they are."""
    number = np.asarray(numbers, dtype=float)
    return SingleObservations(number[:, None], np.ones((1, len(number))), number[None, :, None])


def test_single_observations_are_what_they_came_from(rng):
    Z, roots = rng.standard_normal((4, 2)), rng.uniform(1.0, 2.0, (3, 4))
    one = SingleObservations(Z, roots, rng.standard_normal((3, 4, 2)))
    whole = one.as_pseudo_observations()
    found = singles(Process((whole,)))
    assert_same_arrays(
        (found.Z, found.roots, found.targets), (one.Z, one.roots, one.targets), ALGEBRA
    )
    np.testing.assert_allclose(
        (whole**0.3).precision, (one**0.3).as_pseudo_observations().precision
    )
    np.testing.assert_allclose((one**0.3).targets, (whole**0.3).pseudo_targets)
    assert one.num_bytes == 8 * (8 + 12 + 24)
    assert len(joined([one, one.rows(np.array([2]))]).Z) == 5


def test_what_observes_several_inputs_at_once_is_not_single(rng):
    R = np.tril(np.ones((1, 5, 5)))
    one = PseudoObservations(rng.standard_normal((5, 2)), R, np.zeros((1, 5, 1)), 0.0)
    assert singles(Process((one,))) is None
    assert singles(Process(())) is None


def sampled(num_batches, number):
    """A sample of a stream whose batches have 20 data each."""
    sample = None
    for seen in range(0, 20 * num_batches, 20):
        new = numbered(range(seen, seen + 20))
        sample = remembered.sampled(sample, seen, new, number)
    return sample


def test_a_sample_that_has_room_is_all_of_it():
    np.testing.assert_array_equal(sampled(3, 60).Z[:, 0], np.arange(60))


def test_a_sample_is_of_all_parts_of_a_stream_alike():
    """A quarter each of 400, give or take three standard deviations."""
    sample = sampled(200, 400)
    np.testing.assert_array_equal(sample.Z[:, 0], sample.targets[0, :, 0])
    assert len(np.unique(sample.Z)) == 400
    counts, _ = np.histogram(sample.Z, bins=4, range=(0, 4000))
    np.testing.assert_allclose(counts, 100, atol=26)


def test_the_longer_a_stream_the_smaller_the_share_of_a_batch():
    """Of a sample of 50, a batch of 50 gets 25 after as many data, 5 after nine times as many."""
    old, new = numbered(range(50)), numbered(range(50, 100))

    def from_new(num_before):
        return np.sum(remembered.sampled(old, num_before, new, 50).Z >= 50)

    counts = [[from_new(first + more) for more in range(50)] for first in (50, 450)]
    np.testing.assert_allclose(np.mean(counts, axis=1), [50**2 / 124.5, 50**2 / 524.5], rtol=0.1)


def test_a_sample_takes_a_quarter_of_the_numbers_of_the_precision():
    assert remembered.most(200, 3) == 2000
    assert remembered.most(5000, 3) == remembered.MOST


def test_merged_data_are_remembered_as_they_were(rng):
    X, Y = smooth_data(rng, 150)
    model = streamed(variational(), X, Y, learn=False)
    sample = model.factors[MERGED].remembered
    assert 60 <= len(sample.Z) <= MOST
    places = {tuple(x): y for x, y in zip(X, Y[:, 0], strict=True)}
    noise = float(model.likelihood.variance.numpy())
    np.testing.assert_allclose(sample.roots, 1.0 / np.sqrt(noise))
    told = sample.targets[0, :, 0] * np.sqrt(noise)
    np.testing.assert_allclose(told, [places[tuple(z)] for z in sample.Z])
    assert len({tuple(z) for z in sample.Z}) == len(sample.Z)
    assert model.factors[MERGED].num_bytes > sample.num_bytes


@pytest.mark.parametrize("kind", ["a sample of one's own", "a point", "counts"])
def test_nothing_is_remembered_that_nothing_is_learned_under(rng, kind):
    X, Y = smooth_data(rng, 90)
    if kind == "a point":
        model = known_model(
            sgp.PrivatePseudoPoints("all", budget=BUDGET),
            hyperparameters=sgp.PointHyperparameters(),
        )
    elif kind == "counts":
        Y = np.round(np.exp(Y))
        model = known_model(
            sgp.PrivatePseudoPoints("all", budget=BUDGET), gpflow.likelihoods.Poisson(),
            hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
        )  # fmt: skip
    else:
        model = variational(LearningSample(num_points=10))
    streamed(model, X, Y, learn=False)
    assert model.factors[MERGED].remembered is None


def test_epsilon_is_learned_under_the_nearest_of_what_is_held_and_remembered(rng, monkeypatch):
    X, Y = smooth_data(rng, 400)
    model = known_model(
        sgp.PrivatePseudoPoints("all", budget=250),
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )
    for rows in (slice(0, 200), slice(200, 280)):
        model.update((X[rows], Y[rows]), learn=False)
    seen = []
    learned = every_input.learned

    def noted(*arguments, known=None):
        seen.append(known)
        return learned(*arguments, known=known)

    monkeypatch.setattr(every_input, "learned", noted)
    model.update((X[280:], Y[280:]))
    fine, coarse = seen
    assert len(fine.Z) == 280
    assert coarse is None


def test_fading_makes_what_is_remembered_noisier(rng):
    X, Y = smooth_data(rng, 90)
    model = streamed(variational(), X, Y, learn=False)
    factor = model.factors[MERGED]
    faded = factor.faded(0.25)
    np.testing.assert_allclose(faded.remembered.roots, 0.5 * factor.remembered.roots)
    assert factor.faded(0.0).remembered is None


def test_a_file_keeps_what_is_remembered(rng, tmp_path):
    X, Y = smooth_data(rng, 90)
    model = streamed(variational(), X, Y, learn=False)
    model.save(tmp_path / "model.npz")
    modules = model.kernel, model.likelihood, mean_of_two()
    loaded = sgp.StreamingGP.load(tmp_path / "model.npz", *modules)
    mine, its = (each.factors[MERGED].remembered for each in (model, loaded))
    assert_same_arrays((mine.Z, mine.roots, mine.targets), (its.Z, its.roots, its.targets), 0.0)
