"""The free energy that an update reports is that of what the ledger keeps."""

import gpflow
import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, norm

import streaming_gp as sgp
from streaming_gp import expfam
from streaming_gp.gp.fitting.kept_bound import KeptBound
from streaming_gp.gp.process.process import Process
from tests.gp.builders import FIXED, known_model, labelled
from tests.reference import smooth_data
from tests.tolerances import THROUGH_CHOLESKY

NUM_VALUES = 2000


@pytest.mark.parametrize("likelihood", ["regression", "classification"])
def test_at_one_epsilon_it_is_the_bound_that_was_maximised(rng, likelihood):
    regression = likelihood == "regression"
    data = [smooth_data(rng, 30) if regression else labelled(rng, 30) for _ in range(2)]
    chosen = None if regression else gpflow.likelihoods.Bernoulli()
    model = known_model(sgp.PrivatePseudoPoints(5), chosen, FIXED)
    model.update(data[0])
    cavity = model.posterior_process
    info = model.update(data[1])
    kept = model.factors["batch-1"].pseudo_observations[0]
    at = model._compiled.parameters.value()
    narrow = expfam.MeanFieldNormal.from_mean_scale(at, 1e-9 * np.eye(len(at)))
    found = KeptBound(model._compiled.local).free_energy(cavity, kept, narrow, data[1], seed=0)
    assert found == pytest.approx(info.free_energy, abs=THROUGH_CHOLESKY)


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


def test_with_a_point_at_every_input_it_is_the_bound_of_the_one_likelihood(rng):
    """``E_q(ε)[log p(y | ε) − KL(q(f | ε) ‖ p(f | y, ε))]``, less the divergence of q(ε)."""
    model, (X, Y), _ = streamed(rng, sgp.PrivatePseudoPoints("all"), 6)
    data, kept = (X[:6], Y[:6]), model.factors["batch-0"].pseudo_observations[0]
    q, prior = model.hyperparameter_posterior, model.prior()
    local, vector = model._compiled.local, model.parameter_vector
    noise = local.hyperparameters.noise(vector.size, 3)
    W, s = kept.precision_factor[0] ** 2, kept.precision_factor[0] @ kept.pseudo_targets[0]
    wanted, before = [], vector.value()
    for epsilon in np.asarray(q.mean) + noise @ np.transpose(q.scale):
        vector.assign(epsilon)
        K, variance = model.kernel(X[:6]).numpy(), model.likelihood.variance.numpy()
        S = np.linalg.inv(np.linalg.inv(K) + W)
        m = S @ s
        square = np.sum((Y[:6] - m) ** 2) + np.trace(S)
        expected = -0.5 * (6 * np.log(2 * np.pi * variance) + square / variance)
        K_inverse = np.linalg.inv(K)
        logdets = np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
        kl = 0.5 * (np.trace(K_inverse @ S) + (m.T @ K_inverse @ m).item() - 6 + logdets)
        wanted.append(expected - kl)
    vector.assign(before)
    divergence = float(q.kl_divergence(prior.hyperparameters))
    found = KeptBound(model._compiled.local).free_energy(
        Process((), prior.hyperparameters), kept, q, data, 3
    )
    assert found == pytest.approx(np.mean(wanted) - divergence, rel=1e-6)
