"""Random numbers within compiled functions."""

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf

from streaming_gp.numerics.draws import standard_normal


@pytest.mark.parametrize("jit", [False, True])
def test_draws_are_standard_normal_and_those_of_their_seed(jit):
    def draws(seed):
        return standard_normal([50, 40], seed, tf.float64)

    compiled = tf.function(draws, jit_compile=jit)
    one, again, other = (compiled(tf.constant(seed)).numpy() for seed in ([3, 1], [3, 1], [3, 2]))
    np.testing.assert_array_equal(one, again)
    assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.1
    assert scipy.stats.kstest(one.ravel(), "norm").pvalue > 1e-3
    assert abs(np.corrcoef(one[:-1].ravel(), one[1:].ravel())[0, 1]) < 0.1
