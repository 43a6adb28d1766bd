"""Laws of exponential families, over the registry of families."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_probability as tfp
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_gp import expfam
from streaming_gp.errors import ImproperError
from streaming_gp.expfam import Dirichlet, MeanFieldNormal, Normal, NormalWishart
from streaming_gp.expfam import DirichletNormalWishart as WithWeights
from streaming_gp.expfam.family import inner
from streaming_gp.pvi.damping import damped
from tests.conftest import ALGEBRA, STANDARD_ERRORS, THROUGH_CHOLESKY
from tests.oracles.reference import FAMILY_COMPONENTS as COMPONENTS
from tests.oracles.reference import FAMILY_DIMENSION as DIMENSION
from tests.oracles.reference import random_member as member

LAWS = settings(max_examples=20, deadline=None)
OF_EACH = settings(LAWS, max_examples=5)
seeds = st.integers(0, 2**31 - 1)
families = pytest.mark.parametrize("family", expfam.FAMILIES)
gaussians = pytest.mark.parametrize("family", expfam.GAUSSIANS)
families_by_cost = pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=[pytest.mark.slow] * (family in (NormalWishart, WithWeights)))
        for family in expfam.FAMILIES
    ],
)


def scipy_twin(q):
    covariance = np.asarray(q.covariance) if isinstance(q, Normal) else np.diag(q.variance)
    return scipy.stats.multivariate_normal(np.asarray(q.mean), covariance)


def tfp_twin(q):
    return tfp.distributions.MultivariateNormalTriL(q.mean, q.scale)


def assert_close(a, b, tolerance=THROUGH_CHOLESKY):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@gaussians
@OF_EACH
@given(seeds)
def test_log_density_and_entropy_agree_with_scipy(family, seed):
    q = member(family, seed)
    x = np.random.default_rng(seed + 1).standard_normal((5, DIMENSION))
    assert_close(q.log_prob(x), scipy_twin(q).logpdf(x))
    assert_close(q.entropy(), scipy_twin(q).entropy())


@LAWS
@given(seeds)
def test_a_dirichlet_agrees_with_scipy(seed):
    q = member(Dirichlet, seed)
    twin = scipy.stats.dirichlet(q.concentration)
    x = twin.rvs(5, random_state=seed)
    assert_close(q.log_prob(x), [twin.logpdf(one) for one in x])
    assert_close(q.entropy(), twin.entropy())
    assert_close(q.mean, twin.mean())


@LAWS
@given(seeds)
def test_a_normal_wishart_agrees_with_scipy(seed):
    q = member(NormalWishart, seed)
    x = np.asarray(q.sample(4, seed=seed % 1000))
    expected = np.zeros(4)
    for k in range(COMPONENTS):
        scale = np.linalg.inv(q.scale_inverse[k])
        for n in range(4):
            mu, precision = x[n, k, :DIMENSION], x[n, k, DIMENSION:].reshape(DIMENSION, DIMENSION)
            covariance = np.linalg.inv(q.strength[k] * precision)
            expected[n] += scipy.stats.multivariate_normal(q.mean[k], covariance).logpdf(mu)
            expected[n] += scipy.stats.wishart(float(q.dof[k]), scale).logpdf(precision)
    assert_close(q.log_prob(x), expected)


@OF_EACH
@given(seeds)
def test_weights_and_components_are_independent(seed):
    q = member(WithWeights, seed)
    x = q.sample(4, seed=seed % 1000)
    weights, components = q.weights, q.components
    expected = weights.log_prob(x[:, :, 0]) + components.log_prob(x[:, :, 1:])
    assert_close(q.log_prob(x), expected)
    assert_close(q.entropy(), weights.entropy() + components.entropy())


@pytest.mark.parametrize("place", [0, 3], ids=["weights", "components"])
def test_where_weights_or_components_are_improper_so_is_the_product(place):
    natural = list(member(WithWeights, 0).natural)
    natural[place] = -natural[place]
    assert not WithWeights.is_proper_natural(*natural)


@gaussians
@OF_EACH
@given(seeds)
def test_kl_agrees_with_tfp(family, seed):
    q, p = member(family, seed), member(family, seed + 1)
    assert_close(q.kl_divergence(p), tfp.distributions.kl_divergence(tfp_twin(q), tfp_twin(p)))
    assert_close(q.kl_divergence(q), 0.0)
    assert q.kl_divergence(p) > 0.0


@families
@OF_EACH
@given(seeds)
def test_renyi_tends_to_kl_and_is_skew_symmetric(family, seed):
    q, p = member(family, seed), member(family, seed + 1)
    assert_close(expfam.Renyi(1.0 - 1e-6)(q, p.as_factor()), q.kl_divergence(p), 1e-4)
    skew = expfam.Renyi(0.3)(q, p.as_factor())
    assert_close(skew, expfam.Renyi(0.7)(p, q.as_factor()))


@families
@OF_EACH
@given(seeds)
def test_mean_parameters_are_expected_statistics_and_invert(family, seed):
    q = member(family, seed)
    moments = q.mean_parameters()
    draws = q.sample(40_000, seed=7)
    for moment, statistic in zip(moments, family.sufficient_statistics(draws), strict=True):
        error = np.std(statistic, axis=0) / np.sqrt(len(draws))
        assert (np.abs(moment - np.mean(statistic, axis=0)) < 1.5 * STANDARD_ERRORS * error).all()
    for eta, back in zip(q.natural, family.from_mean_parameters(*moments).natural, strict=True):
        assert_close(eta, back)


ONE = np.ones(1)


@pytest.mark.parametrize(
    "q",
    [
        Dirichlet(np.array([0.01, 0.3, 1e4])),
        Dirichlet(np.array([2e-3, 1e-3])),
        *(
            NormalWishart.from_standard(ONE[:, None], ONE, dof * ONE, ONE[:, None, None])
            for dof in (1e-3, 1e4)
        ),
    ],
    ids=["unequal weights", "small weights", "few degrees of freedom", "many"],
)
def test_mean_parameters_invert_however_far_from_where_newton_begins(q):
    found = type(q).from_mean_parameters(*q.mean_parameters())
    for eta, back in zip(q.natural, found.natural, strict=True):
        np.testing.assert_allclose(eta, back, rtol=THROUGH_CHOLESKY)


@pytest.mark.slow
@families
@settings(LAWS, max_examples=2)
@given(seeds)
def test_fisher_information_is_the_covariance_of_statistics(family, seed):
    q = member(family, seed)
    fisher = q.fisher_information().numpy()
    draws = q.sample(60_000, seed=3)
    flat = [np.reshape(t, (len(draws), -1)) for t in family.sufficient_statistics(draws)]
    statistics = np.concatenate(flat, axis=1)
    assert_close(fisher, fisher.T)
    scale = np.sqrt(np.diag(fisher))
    correlation_error = (np.cov(statistics.T) - fisher) / np.outer(scale, scale)
    assert np.abs(correlation_error).max() < 0.1


@families
@OF_EACH
@given(seeds, st.floats(0.05, 2.0))
def test_factor_algebra(family, seed, power):
    prior, q, r = (member(family, seed + i) for i in range(3))
    factor = q / prior
    assert_close_naturals(prior.times([factor]), q, ALGEBRA)
    assert_close_naturals(prior.times([factor, (r / q) ** power, (r / q) ** -power]), q)
    product = (q / prior) * (r / q)
    for a, b in zip(product.natural, (r / prior).natural, strict=True):
        assert_close(a, b, ALGEBRA)


def assert_close_naturals(a, b, tolerance=THROUGH_CHOLESKY):
    for x, y in zip(a.natural, b.natural, strict=True):
        assert_close(x, y, tolerance)


@families
@OF_EACH
@given(seeds)
def test_the_normaliser_is_kept(family, seed):
    prior, q = member(family, seed), member(family, seed + 1)
    assert_close((prior.as_factor() * (q / prior)).log_integral(), 0.0)
    evidence = 1.7
    scaled = expfam.Factor(family, (q / prior).natural, (q / prior).log_scale + evidence)
    assert_close((prior.as_factor() * scaled).log_integral(), evidence)


@families
@OF_EACH
@given(seeds, st.floats(0.01, 1.0))
def test_damping_interpolates_natural_parameters(family, seed, rho):
    old, new = member(family, seed).as_factor(), member(family, seed + 1).as_factor()
    for a, b, c in zip(old.natural, new.natural, damped(old, new, rho).natural, strict=True):
        assert_close((1 - rho) * a + rho * b, c, ALGEBRA)
    for b, c in zip(new.natural, damped(None, new, rho).natural, strict=True):
        assert_close(rho * b, c, ALGEBRA)


@families
@OF_EACH
@given(seeds)
def test_an_improper_product_is_refused(family, seed):
    prior = member(family, seed)
    negative = expfam.Factor(family, tuple(-1.5 * eta for eta in prior.natural))
    assert not negative.is_proper
    with pytest.raises(ImproperError, match=family.__name__):
        prior.times([negative])


def test_standard_parameters_round_trip(rng):
    mean, root = rng.standard_normal(DIMENSION), rng.standard_normal((DIMENSION, DIMENSION))
    covariance = root @ root.T + np.eye(DIMENSION)
    full = Normal.from_mean_covariance(mean, covariance)
    assert_close(full.mean, mean)
    assert_close(full.covariance, covariance)
    assert_close(full.scale @ np.transpose(full.scale), covariance)
    diagonal = MeanFieldNormal.from_mean_variance(mean, np.diag(covariance))
    assert_close(diagonal.mean, mean)
    assert_close(
        MeanFieldNormal.from_mean_scale(mean, diagonal.scale).variance, np.diag(covariance)
    )


@families_by_cost
@OF_EACH
@given(seeds)
def test_the_natural_gradient_of_a_conjugate_likelihood_is_that_likelihood(family, seed):
    q, likelihood = member(family, seed), member(family, seed + 1).as_factor()

    def expected(q):  # without the base measure, which is the prior's
        return inner(likelihood.natural, q.mean_parameters())

    found = q.natural_gradient(expected)
    for a, b in zip(found.natural, likelihood.natural, strict=True):
        assert_close(a, b)


@gaussians  # others have no formula of their own
@settings(LAWS, max_examples=2)
@given(seeds)
def test_so_is_the_natural_gradient_by_the_fisher_information(family, seed):
    q, likelihood = member(family, seed), member(family, seed + 1).as_factor()
    generic = expfam.ExponentialFamily.natural_gradient(
        q, lambda q: inner(likelihood.natural, q.mean_parameters())
    )
    for a, b in zip(generic.natural, likelihood.natural, strict=True):
        assert_close(a, b, 1e-6)


@gaussians
@OF_EACH
@given(seeds)
def test_moments_of_a_product_within_the_family_are_matched_by_the_other_factor(family, seed):
    q, likelihood = member(family, seed), member(family, seed + 1).as_factor()
    found = q.moment_match(lambda q: (q.as_factor() * likelihood).log_integral())
    for a, b in zip(found.natural, likelihood.natural, strict=True):
        assert_close(a, b)
    assert_close(found.log_scale, likelihood.log_scale)


@gaussians
@OF_EACH
@given(seeds)
def test_an_improper_gaussian_has_no_moments_to_match(family, seed):
    q = member(family, seed)
    improper = family(*(-eta for eta in q.natural))
    assert np.isnan(improper.moment_match(lambda q: tf.reduce_sum(q.mean)).log_scale)


@families
@OF_EACH
@given(seeds)
def test_unconstrained_numbers_make_the_member_again(family, seed):
    q = member(family, seed)
    numbers = q.unconstrained()
    assert_close_naturals(family.from_unconstrained(numbers), q)
    anywhere = np.random.default_rng(seed).standard_normal(numbers.shape)
    assert family.from_unconstrained(anywhere).is_proper


@families
@OF_EACH
@given(seeds)
def test_expected_log_of_a_distribution_is_minus_the_cross_entropy(family, seed):
    q, p = member(family, seed), member(family, seed + 1)
    cross_entropy = q.entropy() + q.kl_divergence(p)
    assert_close(q.expected_log(p.as_factor()), -cross_entropy)
