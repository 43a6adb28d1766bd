"""Observations are held to the support of the likelihood that takes them in the end."""

import gpflow
import numpy as np
import pytest

from streaming_gp import losses, mixture
from streaming_gp.errors import InvalidDataError
from streaming_gp.validation import WrapsLikelihood, as_data, as_pair


def test_a_loss_wraps_its_likelihood():
    likelihood = losses.GeneralisedLikelihood(gpflow.likelihoods.Bernoulli(), losses.BetaLoss(1.5))
    assert isinstance(likelihood, WrapsLikelihood)
    assert not isinstance(gpflow.likelihoods.Bernoulli(), WrapsLikelihood)
    with pytest.raises(InvalidDataError, match="outside the support of Bernoulli: wanted 0 or 1"):
        as_data((np.zeros((2, 1)), np.array([[0.0], [2.0]])), likelihood, 1, 1)


def test_likelihoods_with_integrals_of_their_powers_are_found():
    assert isinstance(mixture.Clutter(np.eye(2)), losses.HasPowerIntegral)
    assert not isinstance(gpflow.likelihoods.Gaussian(), losses.HasPowerIntegral)


@pytest.mark.parametrize("data", [None, 3.0, (1, 2, 3)])
def test_data_that_are_no_pair_are_named(data):
    with pytest.raises(InvalidDataError, match=r"a pair \(X, Y\), got " + type(data).__name__):
        as_pair(data)
