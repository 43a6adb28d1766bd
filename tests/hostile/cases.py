"""Cases as data: every tenth is fast, and the rest run with the slow tests."""

import numpy as np
import pytest


def changed(array, index, value):
    """A copy that has another value at an index."""
    copy = np.array(array)
    copy[index] = value
    return copy


def every_tenth(names, cases, first=0):
    """Parametrise a test by a mapping of names to values, or by the names alone.

    :param first: The number of the first fast case.
    """
    found = list(cases.items()) if isinstance(cases, dict) else [(one, one) for one in cases]
    params = [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            id=str(name),
            marks=() if number % 10 == first % 10 else pytest.mark.slow,
        )
        for number, (name, value) in enumerate(found)
    ]
    return pytest.mark.parametrize(names, params)
