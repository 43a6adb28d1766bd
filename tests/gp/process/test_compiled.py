"""Compiled functions of several models are not taken for one that is traced again and again."""

import logging

import numpy as np

from streaming_gp.gp.process.compiled import compiled, spec


def test_several_functions_do_not_count_as_retracing_of_one():
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("tensorflow")
    logger.addHandler(handler)
    try:
        for number in range(12):
            compiled(lambda x, number=number: x + number, spec(None))(np.ones(2))
    finally:
        logger.removeHandler(handler)
    assert not [record for record in records if "retracing" in record.getMessage()]
