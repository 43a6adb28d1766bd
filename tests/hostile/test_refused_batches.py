"""A batch that is refused, or whose fit fails, changes nothing."""

from dataclasses import dataclass

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError, NumericalError
from streaming_gp.gp import Variational
from tests.hostile.cases import changed
from tests.oracles.builders import (
    BoundOfOnesOwn,
    assert_unchanged,
    classifier,
    labelled,
    predicted,
    regressor,
)
from tests.oracles.reference import smooth_data

BAD = {
    "nan in X": (lambda X, Y: (changed(X, (3, 1), np.nan), Y), "X must be finite.*row 3, column 1"),
    "inf in Y": (lambda X, Y: (X, changed(Y, 0, np.inf)), "Y must be finite.*row 0"),
    "empty": (lambda X, Y: (X[:0], Y[:0]), r"N ≥ 1, got \[0, 2\]"),
    "too few columns": (lambda X, Y: (X[:, :1], Y), r"X must have shape \[N, 2\].*got \[60, 1\]"),
    "another output": (lambda X, Y: (X, np.c_[Y, Y]), r"Y must have shape \[N, 1\].*got \[60, 2\]"),
    "rows differ": (lambda X, Y: (X, Y[:10]), "as many rows, got 60 and 10"),
    "one-dimensional": (lambda X, Y: (X, Y[:, 0]), r"Y must have shape .*got \[60\]"),
    "label 2": (lambda X, Y: (X, Y + 1), "Y holds 2, outside .* of Bernoulli: wanted 0 or 1"),
    "label -1": (lambda X, Y: (X, 2 * Y - 1), "Y holds -1"),
    "object": (lambda X, Y: (X.astype(object), Y), "dtype object"),
    "strings": (lambda X, Y: (X.astype(str), Y), "real numbers"),
    "complex": (lambda X, Y: (X.astype(complex), Y), "real numbers"),
    "integer overflow": (lambda X, Y: (np.full((60, 2), 2**62), Y), "integer 4611686018427387904"),
    "unsigned overflow": (
        lambda X, Y: (np.full((60, 2), 2**64 - 1, np.uint64), Y), "integer 18446744073709551615",
    ),
    "beyond 64 bits": (lambda X, Y: ([[10**30, 1]] * 60, Y), "dtype object"),
    "ragged": (lambda X, Y: ([[1.0, 2.0], [3.0]], Y), "rectangular"),
    "not a pair": (lambda X, Y: X, "must be a pair"),
    "nothing": (lambda X, Y: None, "pair .*NoneType"),
}  # fmt: skip


@dataclass(frozen=True)
class Failing(Variational):
    """Fits, and then does not any more."""

    is_broken = False

    def posterior(self, *arguments):
        if Failing.is_broken:
            raise NumericalError("the local posterior covariance gave non-finite sites")
        return super().posterior(*arguments)


@pytest.fixture(scope="module")
def trained():
    model = classifier(bound=Failing())
    model.update(labelled(np.random.default_rng(5)))
    return model


@pytest.fixture
def unchanged(rng, trained):
    """The model, and data: after the test it has learned nothing and predicts bit for bit alike."""
    X, Y = labelled(rng)
    before = predicted(trained, X)
    parameters, factors = trained.parameter_vector.value(), dict(trained.factors)
    yield trained, X, Y
    assert_unchanged(trained, X, before)
    np.testing.assert_array_equal(trained.parameter_vector.value(), parameters)
    assert dict(trained.factors) == factors


def test_bad_input_gets_one_clear_error_and_changes_nothing(unchanged):
    trained, X, Y = unchanged
    for spoil, message in BAD.values():
        with pytest.raises(InvalidDataError, match=message):
            trained.update(spoil(X, Y))


def test_a_fit_that_fails_half_way_changes_nothing(unchanged, monkeypatch):
    trained, X, Y = unchanged
    monkeypatch.setattr(Failing, "is_broken", True)
    with (
        pytest.warns(UserWarning, match="nugget"),
        pytest.raises(NumericalError, match="covariance"),
    ):
        trained.update((X, Y))


class Lost(gpflow.likelihoods.Bernoulli):
    def _variational_expectations(self, *arguments):
        return np.nan * super()._variational_expectations(*arguments)


@pytest.mark.parametrize("bound", [Variational(), BoundOfOnesOwn()])
def test_sites_that_are_not_finite_are_refused(rng, bound):
    model = classifier(bound=bound, likelihood=Lost())
    with pytest.raises(NumericalError, match="non-finite sites"):
        model.update(labelled(rng))
    assert not model.factors


@pytest.mark.parametrize("raised", [KeyboardInterrupt, StopIteration])
def test_a_callback_that_raises_stops_the_update_and_changes_nothing(unchanged, raised):
    """Also by what SciPy would take for the end of the fit."""
    trained, X, Y = unchanged

    def stop(progress):
        raise raised

    with pytest.raises((KeyboardInterrupt, RuntimeError)):
        trained.update((X, Y), callback=stop)


def test_a_first_batch_that_is_refused_leaves_the_model_open(rng):
    model, (X, Y) = regressor(), smooth_data(rng, 20)
    with pytest.raises(InvalidDataError):
        model.update((X, Y * np.nan))
    info = model.update((X, np.c_[Y, Y]), learn=False)
    assert (info.batch_id, model.num_latent_gps) == ("batch-0", 2)


@pytest.mark.parametrize(
    ("likelihood", "value", "support"),
    [
        (gpflow.likelihoods.Poisson(), 1.5, "counts"),
        (gpflow.likelihoods.Poisson(), -1.0, "counts"),
        (gpflow.likelihoods.Softmax(3), 3.0, "labels 0 to 2"),
        (gpflow.likelihoods.MultiClass(3), 0.5, "labels 0 to 2"),
        (gpflow.likelihoods.Gamma(), 0.0, "positive"),
        (gpflow.likelihoods.Exponential(), -2.0, "positive"),
        (gpflow.likelihoods.Beta(), 1.0, "between 0 and 1"),
        (gpflow.likelihoods.Ordinal(np.array([-1.0, 1.0])), 3.0, "levels 0 to 2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_observations_outside_the_support_are_refused(likelihood, value, support):
    model = sgp.StreamingGP(gpflow.kernels.SquaredExponential(), likelihood)
    with pytest.raises(InvalidDataError, match=support):
        model.update((np.zeros((1, 1)), np.array([[value]])))


def test_a_likelihood_without_a_density_for_the_data_is_named():
    """GPflow's Ordinal gives NaN at its extreme levels with this TensorFlow."""

    class Broken(gpflow.likelihoods.StudentT):
        def _scalar_log_prob(self, X, F, Y):
            return np.nan * F

    with pytest.raises(InvalidDataError, match="Broken gives no finite density to Y at row 0"):
        sgp.StreamingGP(gpflow.kernels.SquaredExponential(), Broken()).update(([[0.0]], [[1.0]]))


def test_another_float_type_is_refused():
    k = gpflow.kernels.SquaredExponential()
    k.variance = gpflow.Parameter(1.0, dtype=np.float32)
    with pytest.raises(InvalidDataError, match=r"kernel.variance is float32.*float64"):
        sgp.StreamingGP(k, gpflow.likelihoods.Gaussian())


def test_an_odd_number_of_prediction_samples_is_refused():
    with pytest.raises(InvalidDataError, match="num_prediction_samples"):
        regressor(num_prediction_samples=7)
