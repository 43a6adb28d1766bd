"""What releases add up to, by formulas, published figures and simulation."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.privacy import Budget, Release, epsilon_of, noise_multiplier_for
from tests.laws import slow
from tests.tolerances import STANDARD_ERRORS

pytest.importorskip("dp_accounting", reason="the privacy extra is not installed")


def delta_of_gaussian(epsilon, sigma):
    """Balle & Wang (2018), theorem 8, for sensitivity 1."""
    a, b = 0.5 / sigma, epsilon * sigma
    return scipy.stats.norm.cdf(a - b) - np.exp(epsilon + scipy.stats.norm.logcdf(-a - b))


@pytest.mark.parametrize(("sigma", "number"), [(1.0, 1), (4.0, 1), (20.0, 100)])
def test_gaussian_mechanisms_have_their_exact_epsilon(sigma, number):
    epsilon = epsilon_of(((Release(sigma), number),), 1e-5)
    exact = delta_of_gaussian(epsilon, sigma / np.sqrt(number))
    np.testing.assert_allclose(exact, 1e-5, rtol=1e-2)
    assert exact <= 1e-5 * (1.0 + 1e-6)


def test_subsampled_steps_keep_within_the_published_bound():
    """Abadi et al. (2016), section 3.2: q = 0.01, σ = 4, 10,000 steps, ε = 1.26 at δ = 1e-5."""
    epsilon = epsilon_of(((Release(4.0, 0.01), 10_000),), 1e-5)
    assert 0.9 < epsilon < 1.26


def losses(rng, release, steps, number, with_row):
    """Privacy losses ``log P / Q`` of runs with a row (P) or without (Q), drawn from either."""
    sigma, rate = release.noise_multiplier, release.sampling_rate
    total = np.zeros(number)
    for _ in range(steps):
        x = sigma * rng.standard_normal(number)
        if with_row:
            x += rng.random(number) < rate
        total += np.log1p(rate * np.expm1((2.0 * x - 1.0) / (2.0 * sigma**2)))
    return total


@pytest.mark.parametrize("release", [Release(1.5), Release(1.0, 0.2)])
def test_simulated_privacy_losses_have_the_delta_that_is_reported(rng, release):
    steps, delta, number = 4, 0.01, 200_000
    epsilon = epsilon_of(((release, steps),), delta)

    def estimates(epsilon):
        for with_row in (True, False):
            sign = 1.0 if with_row else -1.0
            loss = sign * losses(rng, release, steps, number, with_row)
            over = np.maximum(0.0, -np.expm1(epsilon - loss))
            yield over.mean(), over.std() / np.sqrt(number)

    worst, error = max(estimates(epsilon))
    assert abs(worst - delta) < STANDARD_ERRORS * error + 1e-4
    assert max(estimates(0.9 * epsilon))[0] > delta + STANDARD_ERRORS * error


def test_kinds_of_releases_add_up():
    one, other = Release(2.0), Release(3.0, 0.1)
    both = epsilon_of(((one, 2), (other, 5)), 1e-5)
    assert max(epsilon_of(((one, 2),), 1e-5), epsilon_of(((other, 5),), 1e-5)) < both
    np.testing.assert_allclose(both, epsilon_of(((other, 5), (one, 2)), 1e-5), rtol=1e-3)


ONCE, OFTEN = (Release(1.0), 1), (Release(1.0, 0.1), 30)
WITH_MUCH_NOISE = [(Release(4.0), 30), (Release(4.0, 0.1), 1)]


@pytest.mark.parametrize("spent", [(ONCE,), (OFTEN,), (ONCE, OFTEN), (ONCE, *WITH_MUCH_NOISE)])
@pytest.mark.parametrize("delta", [1e-5, slow(1e-2)])
def test_epsilon_is_that_of_dp_accounting(spent, delta):
    import dp_accounting as dp
    import dp_accounting.pld

    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-3)
    for release, number in spent:
        event = dp.GaussianDpEvent(release.noise_multiplier)
        if release.sampling_rate < 1.0:
            event = dp.PoissonSampledDpEvent(release.sampling_rate, event)
        accountant.compose(dp.SelfComposedDpEvent(event, number))
    np.testing.assert_allclose(epsilon_of(spent, delta), accountant.get_epsilon(delta), rtol=1e-4)


def test_a_million_releases_are_priced_at_once():
    one = epsilon_of(((Release(2.0, 0.001), 10**6),), 1e-5)
    assert 0.0 < one < epsilon_of(((Release(2.0, 0.001), 10**8),), 1e-5) < np.inf
    assert epsilon_of(((Release(2.0), 10**6),), 1e-5) == pytest.approx(127_000.0, rel=0.05)


def test_noise_for_a_budget_spends_it_and_no_more():
    budget = Budget(2.0, 1e-5)
    sigma = noise_multiplier_for(budget, 20)
    assert 1.98 < epsilon_of(((Release(sigma), 20),), 1e-5) <= 2.0
    with pytest.raises(InvalidDataError, match="without a bound"):
        noise_multiplier_for(Budget(np.inf), 20)


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1e3])
def test_noise_for_any_budget_is_the_exact_one(epsilon):
    sigma = noise_multiplier_for(Budget(epsilon), 4) / 2.0  # four releases are one of half of it
    assert delta_of_gaussian(epsilon, sigma) <= 1e-5 < delta_of_gaussian(epsilon, sigma / 1.001)


def test_noise_for_samples_spends_a_small_budget_and_no_more():
    sigma = noise_multiplier_for(Budget(0.01), 10, 0.001)
    assert 0.0099 < epsilon_of(((Release(sigma, 0.001), 10),), 1e-5) <= 0.01


def test_samples_under_hardly_any_noise_are_priced_at_once():
    """Against the exact ε of ``½ N(0, σ²) + ½ N(1, σ²)`` and N(0, σ²), whose loss is ε at x = t."""
    sigma, rate = 0.01, 0.5

    def delta(epsilon):
        t = 0.5 + sigma**2 * (epsilon - np.log(rate))  # to rounding, as e^ε is beyond all numbers
        below = np.exp(epsilon + scipy.stats.norm.logsf(t / sigma))
        return rate * scipy.stats.norm.sf((t - 1.0) / sigma) - below

    exact = scipy.optimize.brentq(lambda epsilon: delta(epsilon) - 1e-5, 1e3, 1e4)
    found = epsilon_of(((Release(sigma, rate), 1),), 1e-5)
    assert exact * (1.0 - 1e-6) < found < 1.001 * exact
    assert 1e6 < epsilon_of(((Release(1e-4, rate), 1),), 1e-5) < 1e8


def test_many_samples_cost_no_more_than_all_rows():
    for sigma in (1e4, 1e6):
        assert epsilon_of(((Release(sigma, 0.5), 1000),), 1e-9) <= epsilon_of(
            ((Release(sigma), 1000),), 1e-9
        )


@pytest.mark.parametrize("delta", [1.0, 1.5])
def test_a_bound_that_need_not_hold_is_no_budget(delta):
    with pytest.raises(InvalidDataError, match=r"delta must lie in \(0, 1\)"):
        Budget(1.0, delta)
