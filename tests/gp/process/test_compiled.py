"""Compiled functions."""

import sys

import numpy as np

from streaming_gp.gp.process.compiled import compiled, spec


def test_numbers_are_not_kept():
    """TensorFlow would keep a tensor, and the number, for good: a leak in a long stream."""
    number = float(np.random.default_rng(0).uniform())
    before = sys.getrefcount(number)
    assert float(compiled(lambda x: 2.0 * x, spec())(number)) == 2.0 * number
    assert sys.getrefcount(number) == before
