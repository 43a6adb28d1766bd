"""Every family of the registry passes the check that families of one's own are checked by."""

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from streaming_gp import testing
from streaming_gp.expfam import FAMILIES, MeanFieldNormal
from tests.oracles.reference import random_member


@pytest.mark.parametrize("family", FAMILIES)
def test_families_obey_their_laws(family):
    testing.check_family(family, [random_member(family, seed) for seed in (0, 1)])


@dataclass(frozen=True, eq=False)
class Unnormalised(MeanFieldNormal):
    def log_partition(self):
        return super().log_partition() + tf.reduce_sum(self.precision)


@dataclass(frozen=True, eq=False)
class Unregistered(MeanFieldNormal):
    pass


@dataclass(frozen=True, eq=False)
class Careless(MeanFieldNormal):
    def objection_to(self, factor):
        return None


def members(family):
    given = [random_member(MeanFieldNormal, seed) for seed in (0, 1)]
    return [family(*one.natural) for one in given]


@pytest.mark.parametrize(
    ("family", "sentence"),
    [
        (Unnormalised, "mean parameters"),
        (Unregistered, "storable"),
        (Careless, "what is no factor is objected to"),
    ],
)
def test_what_is_wrong_with_a_family_is_said(family, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_family(family, members(family))


def test_members_of_another_family_are_no_members():
    with pytest.raises(AssertionError, match="every member is a Unregistered"):
        testing.check_family(Unregistered, members(MeanFieldNormal))
    with pytest.raises(AssertionError, match="at least two"):
        testing.check_family(MeanFieldNormal, [MeanFieldNormal(np.zeros(1), np.ones(1))])
