"""Posteriors that are no Gaussians: Gaussians pushed through one invertible map, a flow.

PVI 2018 (section 8) leaves open how a posterior by a normalising flow is to be divided by another.
Where all clients share one map T it need not be: with ``θ = T(z)``, factors ``t_m(z)`` of a
Gaussian multiply and divide as ever, and q(θ) is that of z, pushed through T. A learned T is a
normalising flow (Rezende and Mohamed 2015); :class:`streaming_gp.pvi.LikelihoodParameters` learns
it, as its parameters are no client's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Gaussian
from streaming_gp.inputs import require_positive_integer
from streaming_gp.numerics.quadrature import standard_normals
from streaming_gp.pvi.model import SampledModel, require


class FlowModel:
    """A model of parameters θ whose posterior is that of ``θ = T(z)`` with a Gaussian q(z).

    With p the model's prior, which is that of z too, the free energy of all data is

    ``E_q(z)[Σ_n log p(y_n | T(z)) + log p(T(z)) + log |∂T/∂z| − log p(z)] − KL(q(z) ‖ p(z))``,

    that of a flow in global VI. The terms between the likelihood and the divergence belong to no
    datum: every one of the N of all clients carries an Nth part of them.

    :param model: The model, whose likelihood is that of draws of θ, and whose prior is a Gaussian.
    :param bijector: The map T of TensorFlow Probability, of vectors [D].
    :param num_data: The number N of data of all clients.
    :param num_samples: The number of draws for each estimate of an expectation. They are the same
        at every step, so that any optimiser serves.
    :raises InvalidDataError: if the model has no ``log_likelihood``, the map is no bijector, or a
        number is not positive.
    """

    def __init__(self, model: Any, bijector: Any, num_data: int, num_samples: int = 64) -> None:
        require_positive_integer("num_data", num_data)
        require_positive_integer("num_samples", num_samples)
        if not hasattr(bijector, "forward_log_det_jacobian"):
            raise InvalidDataError(
                f"bijector must be one of TensorFlow Probability, got {bijector!r}"
            )
        self.model: Any = require(model, SampledModel, "a flow")
        self.bijector, self.num_data = bijector, num_data
        self._prior: Gaussian = model.prior()
        size = len(np.asarray(self._prior.precision_mean))
        self._nodes = standard_normals(num_samples, size, seed=0, whiten=num_samples >= 2 * size)

    def prior(self) -> Gaussian:
        """That of z, which is the model's own."""
        return self._prior

    def initial(self, seed: int) -> Gaussian:
        """Where fits of z start: where those of the model do."""
        return self.model.initial(seed)

    def as_data(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """As the model's own."""
        return self.model.as_data(X, Y)

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """Those of the map, which only ``pvi.LikelihoodParameters`` learns."""
        return self.bijector.trainable_variables

    def log_likelihood(self, z: tf.Tensor, X: Any, Y: Any) -> tf.Tensor:
        """``Σ_n log p(y_n | T(z_s))``, and the data's part of what the map does to the prior: [S].

        :param z: Draws of z [S, D].
        """
        theta, prior = self.bijector.forward(z), self._prior
        stretch = self.bijector.forward_log_det_jacobian(z, event_ndims=1)
        of_prior = prior.log_prob(theta) + stretch - prior.log_prob(z)
        part = tf.cast(tf.shape(Y)[0], z.dtype) / self.num_data
        return self.model.log_likelihood(theta, X, Y) + part * of_prior

    def expected_log_likelihood(self, q: Gaussian, X: Any, Y: Any, seed: Any) -> tf.Tensor:
        """The expectation of :meth:`log_likelihood` under q(z), over the draws: []."""
        dtype = tf.convert_to_tensor(q.precision_mean).dtype
        return tf.reduce_mean(self.log_likelihood(q.from_white(tf.cast(self._nodes, dtype)), X, Y))

    def sample(self, q: Gaussian, num_samples: int = 100, seed: int = 0) -> tf.Tensor:
        """Draws of θ [S, D] from q(z), pushed through the map."""
        return self.bijector.forward(q.sample(num_samples, seed))

    def log_prob(self, q: Gaussian, theta: Any) -> tf.Tensor:
        """The log density of q at θ [S, D]: [S]."""
        stretch = self.bijector.inverse_log_det_jacobian(theta, event_ndims=1)
        return q.log_prob(self.bijector.inverse(theta)) + stretch
