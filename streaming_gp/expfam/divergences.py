"""Divergences of q from a cavity, as local free energies use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import tensorflow as tf

from streaming_gp.expfam.base import ExponentialFamily
from streaming_gp.expfam.factor import Factor


class Divergence(Protocol):
    """How far q is from a cavity."""

    def __call__(self, q: ExponentialFamily, cavity: Factor, /) -> tf.Tensor:
        """In nats, without the cavity's normaliser: a scalar, differentiable."""
        ...


@dataclass(frozen=True)
class KL:
    """``weight · E_q[log q − log cavity]``; defined for improper cavities as well.

    :param weight: 1 is variational inference, 0 maximum likelihood.
    """

    weight: float = 1.0

    def __call__(self, q: ExponentialFamily, cavity: Factor) -> tf.Tensor:
        return -self.weight * (q.entropy() + q.expected_log(cavity))
