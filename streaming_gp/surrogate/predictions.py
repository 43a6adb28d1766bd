"""What acquisition functions ask."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.inputs import as_float64, as_real_array
from streaming_gp.surrogate.pending import HasPending
from streaming_gp.surrogate.rows import Dataset, as_arrays


class Predictions(HasPending):
    """Answers of a model in Trieste's shapes."""

    # ---- predictions ----

    def predict(self, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [..., P] of f at query points [..., D]."""
        return _flat(self.model.predict_f, query_points)

    def predict_y(self, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [..., P] of new observations at query points [..., D]."""
        return _flat(self.model.predict_y, query_points)

    def predict_joint(self, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [..., B, P] and covariance [..., P, B, B] of f at batches of points [..., B, D]."""
        return _each(lambda X: self.model.predict_f(X, full_cov=True), query_points)

    def sample(self, query_points: Any, num_samples: int, seed: int | None = None) -> tf.Tensor:
        """Draws [..., S, N, P] of f at query points [..., N, D], correlated over N.

        :param query_points: The points.
        :param num_samples: The number S.
        :param seed: The seed of the draws; the model's own by default.
        """
        draw = self.model.predict_f_samples
        return _each(lambda X: (draw(X, num_samples, seed=seed),), query_points)[0]

    # ---- predictions with additional data ----

    def conditional_predict_f(
        self, query_points: Any, additional_data: Dataset
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [..., M, P] of f at points [M, D], given additional rows as well.

        :param query_points: The points.
        :param additional_data: Rows [..., N, D] and their values [..., N, P].
        """
        return self._conditional(lambda: self.predict(query_points), additional_data)

    def conditional_predict_y(
        self, query_points: Any, additional_data: Dataset
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [..., M, P] of new observations; see :meth:`conditional_predict_f`."""
        return self._conditional(lambda: self.predict_y(query_points), additional_data)

    def conditional_predict_joint(
        self, query_points: Any, additional_data: Dataset
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [..., M, P], covariance [..., P, M, M]; see :meth:`conditional_predict_f`."""
        return self._conditional(lambda: self.predict_joint(query_points), additional_data)

    def conditional_predict_f_sample(
        self, query_points: Any, additional_data: Dataset, num_samples: int
    ) -> tf.Tensor:
        """Draws [..., S, M, P]; see :meth:`conditional_predict_f`."""
        draw = self.sample
        return self._conditional(lambda: (draw(query_points, num_samples),), additional_data)[0]

    def _conditional(self, ask: Any, additional_data: Dataset) -> Any:
        """The answers under each batch of additional rows."""
        X, Y = as_arrays(additional_data)
        if X.ndim < 2 or X.shape[:-1] != Y.shape[:-1]:
            raise InvalidDataError(
                f"wanted X [..., N, D] and Y [..., N, P], got {list(X.shape)} and {list(Y.shape)}"
            )
        leading, answers = X.shape[:-2], []
        batches = zip(X.reshape(-1, *X.shape[-2:]), Y.reshape(-1, *Y.shape[-2:]), strict=True)
        for inputs, values in batches:
            with self.given(inputs, values):
                answers.append(ask())
        return tuple(
            tf.reshape(tf.stack(parts), [*leading, *parts[0].shape])
            for parts in zip(*answers, strict=True)
        )

    # ---- what acquisition functions ask for besides ----

    def get_kernel(self) -> Any:
        """The kernel, at the mean of q(ε)."""
        return self.model.kernel

    def get_mean_function(self) -> Any:
        """The mean function."""
        return self.model.mean_function

    def get_observation_noise(self) -> Any:
        """The variance of the noise, at the mean of q(ε)."""
        return self.model.likelihood.variance

    def log(self, dataset: Any = None) -> None:
        """Trieste's hook for monitoring; nothing is written."""


def _flat(predict: Any, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Predictions at points [..., D], one by one."""
    points = _points(query_points, 1)
    mean, variance = predict(tf.reshape(points, [-1, points.shape[-1]]))
    shape = tf.concat([tf.shape(points)[:-1], tf.shape(mean)[-1:]], axis=0)
    return tf.reshape(mean, shape), tf.reshape(variance, shape)


def _each(predict: Any, query_points: Any) -> tuple[tf.Tensor, ...]:
    """Predictions at batches of points [..., B, D], batch by batch."""
    points = _points(query_points, 2)
    *leading, size, dim = points.shape
    found = [predict(batch) for batch in tf.unstack(tf.reshape(points, [-1, size, dim]))]
    stacked = (tf.stack(parts) for parts in zip(*found, strict=True))
    return tuple(tf.reshape(one, [*leading, *one.shape[1:]]) for one in stacked)


def _points(values: Any, least: int) -> tf.Tensor:
    """Points in float64, with at least so many axes; tensors stay what they are, for gradients.

    :raises InvalidDataError: if they are no real numbers, some are masked, or axes are missing.
    """
    if tf.is_tensor(values):
        points = tf.cast(values, tf.float64)
    else:
        points = tf.constant(as_float64("query_points", as_real_array("query_points", values)))
    if points.shape.rank < least or 0 in points.shape:
        raise InvalidDataError(
            f"wanted query points of {least} axes or more and none empty, got "
            f"{points.shape.as_list()}"
        )
    return points
