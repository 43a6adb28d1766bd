"""What one point at a time computes with, and what GPflow has."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp.gp.online.kernel import process_at
from streaming_gp.gp.online.rows import IsotropicRows, rows_of
from streaming_gp.runtime import Kernel
from tests.tolerances import ALGEBRA

gk = gpflow.kernels
IN_NUMPY = [
    gk.SquaredExponential(variance=1.7, lengthscales=0.6),
    gk.Matern32(variance=0.3, lengthscales=[0.6, 2.0]),
    gk.Matern52(active_dims=[1]),
    gk.Linear() * gk.RationalQuadratic() + gk.White(0.3),
]


@pytest.mark.parametrize(
    "kernel", [*IN_NUMPY, gk.ArcCosine(order=1)], ids=lambda kernel: kernel.name
)
def test_the_prior_is_gpflows(rng, kernel):
    X, X2 = rng.standard_normal((2, 7, 2))
    model = sgp.StreamingGP(kernel, gpflow.likelihoods.Gaussian(scale=0.5))
    local = model._functions().of(model._store.state, (2, 1)).local
    known = process_at(local, model.parameter_vector.value())
    assert isinstance(known.kernel, Kernel) == (kernel in IN_NUMPY)
    np.testing.assert_allclose(known.kernel.covariance(X, X2), kernel(X, X2), atol=ALGEBRA)
    np.testing.assert_allclose(known.kernel.variance(X), kernel(X, full_cov=False), atol=ALGEBRA)
    np.testing.assert_allclose(known.among(X), kernel(X), atol=ALGEBRA)
    assert known.noise == pytest.approx(0.25)
    rows = rows_of(known.kernel, 8, 2)
    assert isinstance(rows, IsotropicRows) == isinstance(kernel, gk.IsotropicStationary)
    for slot, x in enumerate(X):
        rows.put(slot, x, rows.row_of(x))
    rows.drop(2)
    wanted = np.append(kernel(X, X2[:1]).numpy()[:, 0], 0.0)
    wanted[2] = 0.0
    np.testing.assert_allclose(rows.against(rows.row_of(X2[0])), wanted, atol=ALGEBRA)
