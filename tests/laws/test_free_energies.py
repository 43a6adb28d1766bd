"""Free energies of a stream are a bound of its log evidence."""

import gpflow
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import streaming_gp as sgp

NUM_VALUES = 2000


def streamed(rng, pseudo_points, size):
    """A model of two hyperparameters after two small batches, the data, and its free energies."""
    kernel = gpflow.kernels.SquaredExponential()
    gpflow.set_trainable(kernel.variance, False)
    model = sgp.StreamingGP(
        kernel, gpflow.likelihoods.Gaussian(0.1), pseudo_points=pseudo_points,
        optimiser=sgp.LocalOptimiser(max_iterations=15),
    )  # fmt: skip
    X = rng.uniform(-3, 3, (2 * size, 1))
    Y = np.sin(2.0 * X) + 0.1 * rng.standard_normal(X.shape)
    infos = [model.update((X[i : i + size], Y[i : i + size])) for i in (0, size)]
    return model, (X, Y), [info.free_energy for info in infos]


def exact_evidences(model, draws, data):
    """``log p(y | ε)`` of exact regression at every ε."""
    (X, Y), found = data, model.parameter_vector.constrained(draws)
    squares = np.square(X - X.T)
    return [
        multivariate_normal(cov=np.exp(-0.5 * squares / ell**2) + noise * np.eye(len(X))).logpdf(
            Y.T
        )
        for ell, noise in zip(
            found["kernel.lengthscales"], found["likelihood.variance"], strict=True
        )
    ]


@pytest.mark.parametrize(
    "pseudo_points",
    [
        sgp.PrivatePseudoPoints("all"),
        pytest.param(sgp.PrivatePseudoPoints(6), marks=pytest.mark.slow),
        pytest.param(sgp.SharedPseudoPoints(6), marks=pytest.mark.slow),
        pytest.param(sgp.ConditionalPseudoPoints(6), marks=pytest.mark.slow),
        pytest.param(sgp.IndependentPseudoPoints(6), marks=pytest.mark.slow),
    ],
)
def test_free_energies_add_up_to_less_than_the_log_evidence(rng, pseudo_points):
    model, data, energies = streamed(rng, pseudo_points, 10)
    prior, q = model.prior().hyperparameters, model.hyperparameter_posterior
    mean, scale = np.asarray(q.mean), 1.5 * np.diag(np.asarray(q.scale))
    draws = mean + scale * rng.standard_normal((NUM_VALUES, len(mean)))
    weights = np.array(exact_evidences(model, draws, data))
    weights += norm(np.asarray(prior.mean), np.diag(np.asarray(prior.scale))).logpdf(draws).sum(1)
    weights -= norm(mean, scale).logpdf(draws).sum(1)
    log_evidence = logsumexp(weights) - np.log(NUM_VALUES)
    assert sum(energies) < log_evidence
