"""The energy of power EP."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.errors import InvalidDataError
from tests.oracles.builders import NOISE, kernel, known_model, mean_of_two
from tests.tolerances import THROUGH_CHOLESKY, THROUGH_NUGGET


def power_ep(alpha, data):
    fitted = known_model(sgp.PrivatePseudoPoints(9), alpha=alpha)
    return fitted.update(data).free_energy


@pytest.mark.slow
def test_power_ep_tends_to_the_variational_bound_and_fitc_lies_above(data):
    from gpflow.models import GPRFITC

    bound = power_ep(0.0, data)
    gaps = [power_ep(alpha, data) - bound for alpha in (1e-3, 1e-4)]
    assert gaps[0] / gaps[1] == pytest.approx(10.0, rel=0.1)  # linear in α
    fitted = known_model(sgp.PrivatePseudoPoints(9, optimise_locations=False), alpha=1.0)
    info = fitted.update(data)
    fitc = GPRFITC(
        data, kernel(), fitted.factors["batch-0"].Z,
        mean_function=mean_of_two(), noise_variance=NOISE,
    )  # fmt: skip
    with gpflow.config.as_context(gpflow.config.Config(jitter=info.nugget)):
        assert info.free_energy == pytest.approx(
            float(fitc.fitc_log_marginal_likelihood()), rel=THROUGH_CHOLESKY
        )
        for a, b in zip(fitted.predict_f(data[0]), fitc.predict_f(data[0]), strict=True):
            np.testing.assert_allclose(a, b, atol=THROUGH_NUGGET)


def test_power_ep_is_for_gaussian_noise():
    with pytest.raises(InvalidDataError, match="alpha must be 0 unless the likelihood is Gaussian"):
        known_model(sgp.PrivatePseudoPoints(3), gpflow.likelihoods.Bernoulli(), alpha=0.5)
