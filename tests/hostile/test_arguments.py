"""Arguments are held to the range that the check's name says, and named where they are outside."""

from typing import Protocol, runtime_checkable

import numpy as np
import pytest

from streaming_gp import inputs as arguments
from streaming_gp.errors import InvalidDataError

NAN, INF = float("nan"), float("inf")


@runtime_checkable
class Answers(Protocol):
    def answer(self): ...


class Answering:
    def answer(self): ...


def test_a_strategy_is_an_object_and_no_name_or_class():
    arguments.require_strategy("rule", Answering(), Answers, "Answering()")
    for value in ("answering", Answering, None, 3):
        with pytest.raises(InvalidDataError, match=r"^rule must be a strategy such as An"):
            arguments.require_strategy("rule", value, Answers, "Answering()")


@pytest.mark.parametrize(
    ("require", "inside", "outside", "wanted"),
    [
        (arguments.require_positive, [1e-300, 2, INF], [0.0, -1, NAN], "must be positive"),
        (arguments.require_positive_integer, [1, np.int64(7)], [0, -3], "must be positive"),
        (
            arguments.require_positive_integer, [], [2.0, True, "3", None],
            "must be a positive integer",
        ),
        (arguments.require_not_negative, [0, 0.5, INF], [-1e-9, NAN], "must not be negative"),
        (arguments.require_above_one, [1.0001, INF], [1.0, 0, NAN], "must be greater than 1"),
        (arguments.require_fraction, [1e-9, 1.0], [0.0, 1.1, NAN], r"must lie in \(0, 1\]"),
        (arguments.require_decay, [0.0, 0.999], [1.0, -0.1, NAN], r"must lie in \[0, 1\)"),
        (arguments.require_probability, [0, 1, 0.3], [1.1, -0.1, NAN], r"must lie in \[0, 1\]"),
    ],
)  # fmt: skip
def test_ranges(require, inside, outside, wanted):
    for value in inside:
        require("rate", value)
    for value in outside:
        with pytest.raises(InvalidDataError, match=f"^rate {wanted}, got"):
            require("rate", value)
