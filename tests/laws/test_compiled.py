"""Compiled functions: several do not count as one that is traced anew, and numbers are not kept."""

import logging
import sys

import numpy as np

from streaming_gp.gp.process.graphs import Compiled, spec


def test_several_functions_do_not_count_as_retracing_of_one():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        for number in range(12):
            Compiled(lambda x, number=number: x + number, spec(None))(np.ones(2))
    finally:
        logger.removeHandler(handler)
    assert not [record for record in records if "retracing" in record.getMessage()]


def test_numbers_are_not_kept():
    """TensorFlow would keep a tensor, and the number, for good: a leak in a long stream."""
    number = float(np.random.default_rng(0).uniform())
    before = sys.getrefcount(number)
    assert float(Compiled(lambda x: 2.0 * x, spec())(number)) == 2.0 * number
    assert sys.getrefcount(number) == before
