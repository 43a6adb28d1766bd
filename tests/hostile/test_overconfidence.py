"""Noise of any size: predicted standard deviations are honest, or a warning says that they are not.

The oracle is the exact GP in extended precision, which a float64 is not enough for where points
lie close and the noise is 1e-10.
"""

import re
import warnings
from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
from gpflow import kernels as gk

import streaming_gp as sgp
from streaming_gp.errors import OverconfidenceWarning, PoorFitWarning
from tests.hostile.streams import FIXED, QUICK, digest
from tests.oracles.builders import regressor
from tests.oracles.reference import smooth_data

NOISES = (1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0)
LENGTHSCALE = 0.7
OFTEN = 5.0
"""Predicted standard deviations that no honest error exceeds, of some fifty."""


def truth(X):
    return np.sin(2.0 * X)


def batches(noise, duplicated, number=4):
    """Six points each; duplicated ones within a batch and from batch to batch."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(number):
        X = rng.uniform(-2.0, 2.0, (6, 1))
        if duplicated:
            X[3:] = X[:3]
            X[0] = found[0][0][0] if found else X[0]
        found.append((X, truth(X) + np.sqrt(noise) * rng.standard_normal(X.shape)))
    return found


def exact(model, X, Y, at):
    """Mean and variance of f at inputs, in extended precision, at the model's own hyperparameters
    (Rasmussen & Williams 2006).
    """
    X, Y, at = (np.asarray(array, np.longdouble) for array in (X, Y, at))
    size, lengthscale, noise = (
        np.longdouble(parameter.numpy())
        for parameter in (
            model.kernel.variance, model.kernel.lengthscales, model.likelihood.variance,
        )
    )  # fmt: skip

    def kernel(A, B):
        return size * np.exp(-0.5 * ((A - B.T) / lengthscale) ** 2)

    L = kernel(X, X) + noise * np.eye(len(X))
    white = np.concatenate([kernel(X, at), Y], axis=1)
    for j in range(len(X)):  # Cholesky, and forward substitution, row by row
        L[j, j] = np.sqrt(L[j, j] - L[j, :j] @ L[j, :j])
        L[j + 1 :, j] = (L[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j]) / L[j, j]
        white[j] = (white[j] - L[j, :j] @ white[:j]) / L[j, j]
    V, w = white[:, :-1], white[:, -1]
    return (V.T @ w).astype(float), (size - np.sum(V**2, axis=0)).astype(float)


def errors(model, data):
    """Of predicted means, in predicted standard deviations: from the exact GP's and the truth; and
    the predicted standard deviation over the exact GP's.
    """
    X, Y = (np.concatenate(part) for part in zip(*data, strict=True))
    at = np.concatenate([np.linspace(-2.0, 2.0, 30)[:, None], X])
    mean, variance = (np.asarray(part)[:, 0] for part in model.predict_f(at))
    exact_mean, exact_variance = exact(model, X, Y, at)
    scale = np.sqrt(variance)
    far = np.abs(mean - exact_mean) / scale
    return far, np.abs(mean - truth(at)[:, 0]) / scale, scale / np.sqrt(exact_variance)


def begun(points, noise, alpha=0.0, hyperparameters=FIXED, iterations=10):
    likelihood = gpflow.likelihoods.Gaussian(variance_lower_bound=1e-12)
    likelihood.variance.assign(noise)
    return sgp.StreamingGP(
        gk.SquaredExponential(lengthscales=LENGTHSCALE), likelihood,
        pseudo_points=points, hyperparameters=hyperparameters, alpha=alpha,
        optimiser=sgp.LocalOptimiser(max_iterations=iterations, projection_iterations=iterations),
    )  # fmt: skip


def streamed(model, data, learn=None, kind=OverconfidenceWarning):
    """What it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for batch in data:
            model.update(batch, learn=learn)
    return [str(one.message) for one in caught if issubclass(one.category, kind)]


class UnfittedError(Exception):
    """Nothing was fitted."""


@dataclass(frozen=True)
class Unfitted(sgp.PrivatePseudoPoints):
    """What is said of the first data is said before they are fitted, which takes far longer."""

    def fit(self, *_):
        raise UnfittedError


def unfitted(kernel=None, likelihood=None, hyperparameters=None):
    return sgp.StreamingGP(
        kernel or gk.SquaredExponential(), likelihood or gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=Unfitted("all"), hyperparameters=hyperparameters,
    )  # fmt: skip


def said_at_first(model, data):
    """What a model that is not fitted says of its first data, after which it is as it was."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(UnfittedError):
            model.update(data)
    return said


STRATEGIES = {
    "few private": (sgp.PrivatePseudoPoints(3), 0.0),
    "enough private": (sgp.PrivatePseudoPoints(6), 0.0),
    "private within a budget": (sgp.PrivatePseudoPoints(6, budget=12), 0.0),
    "every input within a budget": (sgp.PrivatePseudoPoints("all", budget=12), 0.0),
    "few private by power EP": (sgp.PrivatePseudoPoints(3), 1.0),
    "few shared": (sgp.SharedPseudoPoints(6), 0.0),
    "enough shared": (sgp.SharedPseudoPoints(24), 0.0),
    "few conditional": (sgp.ConditionalPseudoPoints(3), 0.0),
    "few independent": (sgp.IndependentPseudoPoints(6), 0.0),
}
HONEST = {
    "enough private", "every input within a budget", "few private by power EP", "enough shared",
}  # fmt: skip
"""These never warn: their deviations are honest whatever the noise."""


@pytest.mark.slow
@pytest.mark.parametrize("duplicated", [False, True], ids=["", "duplicated"])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_deviations_are_honest_or_a_warning_says_that_they_are_not(name, noise, duplicated):
    points, alpha = STRATEGIES[name]
    model, data = begun(points, noise, alpha), batches(noise, duplicated)
    warned = streamed(model, data)
    far, off, _ = errors(model, data)
    assert np.isfinite(far).all()
    assert warned or max(far.max(), off.max()) < OFTEN
    if name in HONEST or noise == 1.0:
        assert not warned


@pytest.mark.parametrize("duplicated", [False, True])
@pytest.mark.parametrize("noise", NOISES)
def test_a_point_at_every_input_is_the_exact_process_at_any_noise(exactly, noise, duplicated):
    exactly.likelihood.variance.assign(noise)
    data = batches(noise, duplicated)
    assert not streamed(exactly, data, learn=False)
    far, _, ratio = errors(exactly, data)
    for name in list(exactly.factors):
        exactly.remove(name)
    assert far.max() < 1e-3
    np.testing.assert_allclose(ratio, 1.0, rtol=1e-3)


@pytest.fixture(scope="module")
def exactly():
    return begun(sgp.PrivatePseudoPoints("all"), 1.0)


def plane(noise, number=6):
    """A hundred points of two inputs each, of a function that few points say well."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(number):
        X = rng.uniform(-3.0, 3.0, (100, 2))
        Y = np.sin(X[:, :1]) * np.cos(X[:, 1:]) + np.sqrt(noise) * rng.standard_normal((100, 1))
        found.append((X, Y))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lengthscale", "noise", "is_honest"),
    [(0.5, 1e-2, True), (1.5, 1e-2, True), (1.5, 1e-4, False)],
)
def test_a_plane_is_warned_of_where_errors_at_the_points_are_large(lengthscale, noise, is_honest):
    """In the first the points leave 60 times the noise at the data, as the prior has it, and errors
    at the points are as predicted all the same.
    """
    model = begun(sgp.PrivatePseudoPoints(10), noise)
    model.kernel.lengthscales.assign(lengthscale)
    warned = streamed(model, plane(noise))
    Z = np.concatenate([factor.Z for factor in model.factors.values()])
    mean, variance = map(np.asarray, model.predict_f(Z))
    off = np.abs(mean - np.sin(Z[:, :1]) * np.cos(Z[:, 1:])) / np.sqrt(variance)
    assert (off.max() < OFTEN) == is_honest
    assert bool(warned) != is_honest


@pytest.mark.slow
@pytest.mark.parametrize(
    "hyperparameters",
    [sgp.PointHyperparameters(), sgp.VariationalHyperparameters(num_samples=4)],
    ids=["point", "distribution"],
)
@pytest.mark.parametrize("name", ["few private", "enough private"])
@pytest.mark.parametrize("noise", NOISES)
def test_so_are_they_where_the_noise_is_learned(name, noise, hyperparameters):
    """The exact process has the hyperparameters that were learned."""
    model = begun(STRATEGIES[name][0], noise, hyperparameters=hyperparameters)
    warned = streamed(model, data := batches(noise, duplicated=False))
    assert warned or errors(model, data)[0].max() < OFTEN


@pytest.mark.slow
def test_few_points_are_as_sure_as_batch_inference_and_say_so_once_or_refuse():
    """It is the bound that is over-confident, and nothing is added to that (Titsias 2009)."""
    noise, data = 1e-6, batches(1e-6, duplicated=False)
    model = begun(sgp.PrivatePseudoPoints(3, optimise_locations=False), noise)
    before = digest(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OverconfidenceWarning)
        with pytest.raises(OverconfidenceWarning, match="the 3 pseudo-points of batch 'batch-0'"):
            model.update(data[0], learn=False)
    assert digest(model) == before
    (said,) = streamed(model, data[:1], learn=False)
    assert "over-confident: wanted more points" in said
    assert "errors at them are some" in said
    check_batch_inference(model, data[0])
    assert not streamed(model, data[1:], learn=False)
    assert errors(model, data)[0].max() > OFTEN


def check_batch_inference(model, data):
    """The same as GPflow's on the same points, noise and nugget."""
    Z, at = model.factors["batch-0"].Z, np.linspace(-2.0, 2.0, 30)[:, None]
    batch = gpflow.models.SGPR(data, model.kernel, Z, likelihood=model.likelihood)
    for one, other in zip(model.predict_f(at), batch.predict_f(at), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("size", [300.0, 1e-3, 1.0])
def test_targets_far_from_the_prior_are_warned_of_under_a_distribution(size):
    X = np.linspace(-3.0, 3.0, 12)[:, None]
    said = said_at_first(unfitted(), (X, size * truth(X)))
    assert [one.category for one in said] == [OverconfidenceWarning] * (size != 1.0)
    for one in said:
        assert "targets of size" in str(one.message)
        assert "larger prior_log_scale" in str(one.message)


def test_one_draw_of_a_smooth_function_has_a_size_of_its_own():
    """Where the prior leaves the variances no room, a draw may still be half or twice as large."""
    kernel = gk.SquaredExponential(lengthscales=3.0)
    noise = gpflow.likelihoods.Gaussian(0.1)
    gpflow.set_trainable(kernel.variance, False)
    gpflow.set_trainable(noise.variance, False)
    X = np.linspace(-3.0, 3.0, 12)[:, None]
    model = unfitted(kernel, noise)
    for size in (0.5, 2.0, 500.0):
        said = said_at_first(model, (X, size * np.cos(X / 3.0)))
        assert ["targets of size" in str(one.message) for one in said] == [True] * (size == 500.0)


def test_targets_that_are_all_at_the_prior_mean_have_no_size_to_warn_of():
    assert said_at_first(unfitted(), (on_a_line(), np.zeros((20, 1)))) == []


# ---- poor fits ----


def shuffled(rng, depends=True):
    """A hundred data all over eight dimensions."""
    X = rng.standard_normal((100, 8))
    Y = np.sin(X).sum(axis=1, keepdims=True) if depends else rng.standard_normal((100, 1))
    return X, (Y - Y.mean()) / Y.std()


def model_on(points):
    kernel = gk.SquaredExponential(lengthscales=np.ones(8))
    return sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        hyperparameters=sgp.VariationalHyperparameters(num_samples=2),
    )  # fmt: skip


def warnings_of(model, data):
    """All that an update warns of."""
    return streamed(model, [data], kind=Warning)


@pytest.mark.slow
@pytest.mark.parametrize(
    "points",
    [sgp.SharedPseudoPoints(20, growth=2), sgp.PrivatePseudoPoints(2)],
    ids=["shared", "private"],
)
def test_points_too_few_to_tell_a_function_from_noise(rng, points):
    model = model_on(points)
    with pytest.warns(PoorFitWarning, match="batch-0.*2 pseudo-points.*wanted more points"):
        model.update(shuffled(rng))
    assert warnings_of(model, shuffled(rng)) == []  # it is said once


def test_a_function_that_varies_by_less_than_the_noise_is_named_once(rng):
    kernel = gk.SquaredExponential(1e-4)
    gpflow.set_trainable(kernel.variance, False)
    points = sgp.PrivatePseudoPoints(2, optimise_locations=False)
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), pseudo_points=points,
        hyperparameters=sgp.PointHyperparameters(), optimiser=QUICK,
    )  # fmt: skip
    with pytest.warns(PoorFitWarning, match="batch-0.*2 pseudo-points.*wanted more points"):
        model.update(smooth_data(rng, 20))
    assert warnings_of(model, smooth_data(rng, 20)) == []


@pytest.mark.slow
def test_with_points_enough_for_the_function_nothing_is_said(rng):
    model = model_on(sgp.SharedPseudoPoints(30))
    assert warnings_of(model, shuffled(rng)) == []


@pytest.mark.slow
def test_a_batch_that_is_noise_at_every_input_needs_no_more_points(rng):
    model = model_on(sgp.PrivatePseudoPoints("all"))
    assert warnings_of(model, shuffled(rng, depends=False)) == []


def test_hyperparameters_that_are_known_have_learned_nothing(rng):
    model = regressor(hyperparameters=FIXED)
    model.kernel.variance.assign(1e-4)
    assert warnings_of(model, smooth_data(rng)) == []


def on_a_line(scale=1.0, number=20):
    return scale * np.linspace(0.0, 10.0, number)[:, None]


def warned_of_inputs(kernel, X, strategy=None, likelihood=None):
    """Whether a model with this kernel says of its first inputs that they lie far apart; of labels
    it says nothing else.
    """
    model = unfitted(kernel, likelihood or gpflow.likelihoods.Bernoulli(), strategy)
    said = said_at_first(model, (X, np.float64(np.sin(X[:, :1]) > 0.0)))
    found = [one for one in said if "inputs lie" in str(one.message)]
    for one in found:
        assert one.category is PoorFitWarning
        assert re.match(SAID, str(one.message))
    return len(found) == 1


SAID = r"inputs lie \d+(\.\d+)? lengthscales from their nearest.*standardised inputs"


def product():
    return gk.SquaredExponential(active_dims=[0]) * gk.Matern12(active_dims=[1])


def test_inputs_that_say_nothing_of_one_another_are_warned_of():
    far = on_a_line(1e4)
    assert warned_of_inputs(gk.SquaredExponential(), far)
    assert warned_of_inputs(gk.Matern32(), far, likelihood=gpflow.likelihoods.Gaussian(0.1))
    assert warned_of_inputs(product(), np.hstack([on_a_line(), far]))
    assert not warned_of_inputs(gk.SquaredExponential(lengthscales=1e3), far)  # their spread
    for near in (on_a_line(), far[:19], np.repeat(far[:1], 30, axis=0)):  # 19: too few to tell
        assert not warned_of_inputs(gk.SquaredExponential(), near)


def test_without_lengthscales_that_are_learned_there_is_nothing_to_warn_of():
    X = np.hstack([on_a_line(), on_a_line(1e4)])
    for without in (gk.Linear(), gk.Periodic(gk.SquaredExponential())):
        assert not warned_of_inputs(without, X[:, 1:])
    assert not warned_of_inputs(product(), X, sgp.PointHyperparameters())
    chosen = product()
    gpflow.set_trainable(chosen.kernels[1].lengthscales, False)
    assert not warned_of_inputs(chosen, X)
    chosen.kernels[1].lengthscales = np.float64(1.0)  # no parameter any more
    assert not warned_of_inputs(chosen, X)
