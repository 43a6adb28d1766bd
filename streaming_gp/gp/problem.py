"""All that is given in one local update, as tensors."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from streaming_gp.gp.process import Stack


class Problem(NamedTuple):
    """All that is given in one update.

    :param X: inputs [N, D].
    :param Y: observations [N, P].
    :param stack: the cavity's rows.
    :param location: where the whitened variables of ε are zero [E].
    :param scale: their unit, a lower factor [E, E].
    :param noise: common random numbers [S, E].
    :param Z_start: where the pseudo-points start [M, D].
    :param Z_unit: the unit of their offsets [D].
    :param nugget: variance of their white noise [].
    :param absorbed: earlier rows that the new points take over; empty unless points are shared.
    :param tie: noise that absorbed rows and new points have in common [].
    """

    X: tf.Tensor
    Y: tf.Tensor
    stack: Stack
    location: tf.Tensor
    scale: tf.Tensor
    noise: tf.Tensor
    Z_start: tf.Tensor
    Z_unit: tf.Tensor
    nugget: tf.Tensor
    absorbed: Stack
    tie: tf.Tensor
