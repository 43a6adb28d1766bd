"""ε as one value: fixed, by maximum likelihood, and MAP, against GPflow."""

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import Exact
from tests.oracles.builders import classifier, kernel, labelled, model_of, regressor
from tests.oracles.reference import (
    smooth_data,
)

LONG = sgp.LocalOptimiser(max_iterations=300)
TO_THE_END = sgp.LocalOptimiser(max_iterations=300, tolerance=0.0)
EVIDENCE, WHERE_IT_IS_FLAT = 1e-5, 2e-2
"""Relative differences of two optimisers: in the evidence, and in parameters at its flat top."""


def test_maximum_likelihood_is_that_of_the_exact_gp(rng):
    X, Y = smooth_data(rng)
    model = model_of(sgp.PointHyperparameters(), optimiser=LONG)
    info = model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), kernel(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(info.free_energy, oracle.log_marginal_likelihood(), rtol=EVIDENCE)
    np.testing.assert_allclose(
        model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=0.5 * WHERE_IT_IS_FLAT
    )


@pytest.mark.parametrize("prior_on", ["constrained", "unconstrained"])
def test_map_adds_gpflow_priors_once(rng, prior_on):
    X, Y = smooth_data(rng)

    def with_prior():
        k = kernel()
        k.lengthscales.prior = tfp.distributions.Normal(np.float64(3.0), np.float64(0.1))
        k.lengthscales.prior_on = prior_on
        return k

    model = model_of(sgp.PointHyperparameters(), with_prior(), optimiser=LONG)
    model.update((X, Y))
    oracle = gpflow.models.GPR((X, Y), with_prior(), noise_variance=0.1)
    gpflow.optimizers.Scipy().minimize(oracle.training_loss, oracle.trainable_variables)
    np.testing.assert_allclose(
        model.kernel.lengthscales, oracle.kernel.lengthscales, rtol=0.5 * WHERE_IT_IS_FLAT
    )
    np.testing.assert_allclose(model.kernel.variance, oracle.kernel.variance, rtol=WHERE_IT_IS_FLAT)


def test_fixed_hyperparameters_stay(rng):
    model = model_of(sgp.FixedHyperparameters())
    before = model.parameter_vector.value()
    model.update(smooth_data(rng))
    np.testing.assert_array_equal(model.parameter_vector.value(), before)


def test_one_point_batches_do_not_trap_maximum_likelihood(rng):
    """One point's likelihood is largest without noise; later batches must find back from there."""
    model = sgp.StreamingGP(
        gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Gaussian(0.1),
        pseudo_points=sgp.PrivatePseudoPoints(4), hyperparameters=sgp.PointHyperparameters(),
    )  # fmt: skip
    noise = []
    for size in (50, 1, 50, 50):
        X = rng.uniform(-3, 3, (size, 1))
        model.update((X, np.sin(X) + 0.1 * rng.standard_normal(X.shape)))
        noise.append(model.likelihood.variance.numpy())
    assert noise[1] < 1e-3 < noise[-1] < 0.1


# ---- memory ----


def remembering(memory, pseudo_points, **options):
    point = sgp.PointHyperparameters(remember=memory)
    return regressor(hyperparameters=point, pseudo_points=pseudo_points, **options)


@pytest.mark.parametrize(
    ("pseudo_points", "name"),
    [
        (sgp.PrivatePseudoPoints(5), "evidence"),
        (sgp.PrivatePseudoPoints("all"), "evidence"),
        (sgp.ConditionalPseudoPoints(5), "divergence"),
    ],
    ids=["private", "every input", "conditional"],
)
def test_true_is_the_memory_that_the_points_have_by_default(rng, pseudo_points, name):
    (X, Y), found = smooth_data(rng, 40), []
    for memory in (True, name):
        model = remembering(memory, pseudo_points)
        energies = [model.update((X[i::2], Y[i::2])).free_energy for i in range(2)]
        found.append([*energies, *model.parameter_vector.value()])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("memory", "options", "why"),
    [
        (
            "evidence",
            {"pseudo_points": sgp.ConditionalPseudoPoints(5)},
            "'evidence' with ConditionalPseudoPoints.* no factor that is free of ε",
        ),
        (
            "divergence",
            {"pseudo_points": sgp.PrivatePseudoPoints("all")},
            "'divergence' with a point at every input.* no white noise",
        ),
        (
            "divergence",
            {"pseudo_points": sgp.PrivatePseudoPoints(5), "bound": Exact()},
            "'divergence' with a point at every input.* no white noise",
        ),
    ],
    ids=["conditional", "every input", "the exact bound"],
)
def test_a_memory_that_points_cannot_have_is_refused(memory, options, why):
    with pytest.raises(InvalidDataError, match=why):
        remembering(memory, **options)


@pytest.mark.slow
def test_other_likelihoods_have_both_memories_and_a_file_keeps_the_name(rng, tmp_path):
    X, Y = labelled(rng, 30)
    learned = []
    for memory in ("evidence", "divergence"):
        model = classifier(hyperparameters=sgp.PointHyperparameters(remember=memory))
        model.update((X[:15, :1], Y[:15]))
        path = tmp_path / f"{memory}.npz"
        model.save(path)
        loaded = sgp.StreamingGP.load(
            path, gpflow.kernels.SquaredExponential(), gpflow.likelihoods.Bernoulli()
        )
        assert loaded.settings.hyperparameters.remember == memory
        energies = [one.update((X[15:, :1], Y[15:])).free_energy for one in (model, loaded)]
        assert energies[0] == energies[1]
        learned.append(model.parameter_vector.value())
    assert not np.allclose(*learned)


@pytest.mark.parametrize(
    "options",
    [
        {"pseudo_points": sgp.PrivatePseudoPoints(10, budget=30), "alpha": 0.5},
        {"pseudo_points": sgp.SharedPseudoPoints(20)},
    ],
    ids=["power EP within a budget", "shared"],
)
def test_a_stream_that_remembers_by_the_divergence_learns(rng, options):
    X, Y = smooth_data(rng, 120)
    model = remembering("divergence", **options)
    for i in range(4):
        model.update((X[i::4], Y[i::4]))
    assert np.mean((model.predict_f(X)[0] - Y) ** 2) < 0.1 * np.var(Y)
