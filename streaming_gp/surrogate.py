"""A streaming GP as the surrogate of Bayesian optimisation and active learning.

The methods are those that Trieste asks of a model (Picheny et al. 2023), which asks by structure:
``TrainableProbabilisticModel``, ``SupportsPredictJoint``, ``SupportsPredictY`` and
``FastUpdateModel``. Trieste itself is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import StreamingGP
from streaming_gp.gp.forgetting import ForgetNothing
from streaming_gp.inputs import as_float64, as_name, as_real_array, require_not_negative

__all__ = ["Dataset", "StreamingSurrogate"]

OBSERVED, ROWS = "observed", "rows-"
"""The factor of all rows that hyperparameters were learned from, and the beginning of the names of
those that came since."""
TEMPORARY = "temporary"
"""The factor of rows that count in one question."""


class Dataset(Protocol):
    """Rows as Trieste has them."""

    @property
    def query_points(self) -> Any:
        """Inputs [..., N, D]."""

    @property
    def observations(self) -> Any:
        """Observations [..., N, P]."""


class StreamingSurrogate:
    """A model that takes in each observation in milliseconds, and forgets pending ones exactly.

    New rows are absorbed as factors of their own, by linear algebra alone; :meth:`optimize` learns
    hyperparameters from all rows, when these have become so many more. Points whose values are
    still to come are factors too, which stand for guesses: :meth:`remove_pending` takes them out,
    and at fixed hyperparameters the model is exactly the one that never had them.

    :param model: A model that has seen no data, with a point at every input
        (``PrivatePseudoPoints("all")``) and Gaussian noise, for which all this is exact.
    :param growth: The share by which rows must have grown for hyperparameters to be learned again;
        0 for each time.
    :raises InvalidDataError: if the model has seen data, or forgets, or has a budget, or growth is
        negative.
    """

    def __init__(self, model: StreamingGP, growth: float = 0.25) -> None:
        require_not_negative("growth", growth)
        if model.num_updates:
            raise InvalidDataError("wanted a model that has seen no data")
        forgetting, points = model.settings.forgetting, model.settings.pseudo_points
        if not isinstance(forgetting, ForgetNothing) or getattr(points, "budget", None):
            raise InvalidDataError(
                "wanted a model that forgets and merges nothing, as pending points would push out "
                f"rows that were observed; got {forgetting} and {points}"
            )
        self.model = model
        self._growth = growth
        self._num_learned = 0  # rows that hyperparameters were learned from
        self._dataset: Any = None
        self._X, self._Y = np.zeros((0, 0)), np.zeros((0, 0))
        self._pending: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    # ---- learning ----

    def update(self, dataset: Dataset | tuple[Any, Any]) -> None:
        """Take in the rows that are new; hyperparameters stay as they are.

        :param dataset: **All** rows, as Trieste gives them, or a pair (X [N, D], Y [N, P]). If it
            does not begin with the rows of the call before, these are forgotten first.
        :raises InvalidDataError: as :meth:`streaming_gp.StreamingGP.update`; the model is as it
            was then.
        """
        X, Y = _as_rows(dataset)
        start = len(self._X) if self._begins(X, Y) else 0
        with self._all_or_nothing():
            if start == 0:
                self._forget([name for name in self.model.factors if name not in self._pending])
            if len(X) > start:
                name = f"{ROWS}{start}" if OBSERVED in self.model.factors else OBSERVED
                self.model.update((X[start:], Y[start:]), batch_id=name, learn=False)
        if start == 0:
            self._num_learned = 0
        self._X, self._Y, self._dataset = X, Y, dataset

    def optimize(self, dataset: Dataset | tuple[Any, Any]) -> None:
        """Learn hyperparameters from all rows, if these have grown by so much since the last time.

        Pending points have no part in that.

        :param dataset: All rows, as in :meth:`update`, which need not have been called.
        :raises InvalidDataError: as :meth:`update`.
        :raises NumericalError: as :meth:`streaming_gp.StreamingGP.update`; the model is as it was
            then.
        """
        X, Y = _as_rows(dataset)
        num_learned = self._num_learned if self._begins(X, Y) else 0
        if len(X) < max(1.0, (1.0 + self._growth) * num_learned):
            self.update(dataset)
            return
        with self._all_or_nothing():  # all rows as one factor; pending points come back
            self._forget([name for name in self.model.factors if name != OBSERVED])
            if OBSERVED in self.model.factors:
                self.model.revisit(OBSERVED, (X, Y))
            else:
                self.model.update((X, Y), batch_id=OBSERVED, learn=True)
            for name, data in self._pending.items():
                self.model.update(data, batch_id=name, learn=False)
        self._X, self._Y, self._num_learned, self._dataset = X, Y, len(X), dataset

    def get_internal_data(self) -> Any:
        """The rows as they came."""
        return self._dataset

    def _begins(self, X: np.ndarray, Y: np.ndarray) -> bool:
        """Whether these rows begin with those of the call before."""
        number = len(self._X)
        return np.array_equal(X[:number], self._X) and np.array_equal(Y[:number], self._Y)

    def _forget(self, names: list[str]) -> None:
        """Without these factors, at the hyperparameters that are there."""
        ledger = self.model.ledger
        for name in names:
            ledger = ledger.without(name)
        if names:
            self.model.adopt(ledger)

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Several changes of the model count as one."""
        before = self.model.state
        try:
            yield
        except BaseException:
            if self.model.ledger is not before.ledger:
                self.model.go_back(before)
            raise

    # ---- points whose values are still to come ----

    @property
    def pending(self) -> tuple[str, ...]:
        """The names of pending points."""
        return tuple(self._pending)

    def add_pending(self, name: str, X: Any, Y: Any = None) -> None:
        """Behave as if these points had been observed.

        :param name: A name of your choice.
        :param X: The points [N, D].
        :param Y: What to take for their values [N, P]; by default what the model expects, which
            lowers the variance there and leaves the mean as it is.
        :raises InvalidDataError: if the name is taken, or X or Y are refused.
        """
        if as_name("name", name) == OBSERVED or name.startswith(ROWS):
            raise InvalidDataError(f"{name!r} is a name of observed rows: wanted another")
        guess = np.asarray(self.model.predict_f(X)[0]) if Y is None else Y
        X, guess = _as_arrays((X, guess))
        self.model.update((X, guess), batch_id=name, learn=False)
        self._pending[str(name)] = X, guess

    def remove_pending(self, name: str) -> None:
        """Take pending points out again, as if they had never been.

        :param name: Their name.
        :raises InvalidDataError: if nothing of that name is pending.
        """
        if name not in self._pending:
            raise InvalidDataError(f"nothing named {name!r} is pending; {[*self._pending]} is")
        self._forget([name])
        del self._pending[name]

    @contextmanager
    def given(self, X: Any, Y: Any = None) -> Iterator[None]:
        """Within a ``with`` block, answer as if there were these observations, too.

        :param X: The points [N, D].
        :param Y: Their values [N, P], as in :meth:`add_pending`.
        """
        self.add_pending(TEMPORARY, X, Y)
        try:
            yield
        finally:
            self.remove_pending(TEMPORARY)

    # ---- predictions ----

    def predict(self, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [..., P] of f at query points [..., D]."""
        return _pointwise(self.model.predict_f, query_points)

    def predict_y(self, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance [..., P] of new observations at query points [..., D]."""
        return _pointwise(self.model.predict_y, query_points)

    def predict_joint(self, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean [..., B, P] and covariance [..., P, B, B] of f at batches of points [..., B, D]."""
        return _batchwise(lambda X: self.model.predict_f(X, full_cov=True), query_points)

    def sample(self, query_points: Any, num_samples: int, seed: int | None = None) -> tf.Tensor:
        """Draws [..., S, N, P] of f at query points [..., N, D], correlated over N.

        :param query_points: The points.
        :param num_samples: The number S.
        :param seed: The seed of the draws; the model's own by default.
        """
        draw = self.model.predict_f_samples
        return _batchwise(lambda X: (draw(X, num_samples, seed=seed),), query_points)[0]

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

    def _conditional(self, ask: Callable[[], Any], additional_data: Dataset) -> Any:
        """The answers under each batch of additional rows."""
        X, Y = _as_arrays(additional_data)
        if X.ndim < 2 or X.shape[:-1] != Y.shape[:-1]:
            raise InvalidDataError(
                f"wanted X [..., N, D] and Y [..., N, P], got {list(X.shape)} and {list(Y.shape)}"
            )
        answers = []
        batches = zip(X.reshape(-1, *X.shape[-2:]), Y.reshape(-1, *Y.shape[-2:]), strict=True)
        for inputs, values in batches:
            with self.given(inputs, values):
                answers.append(ask())
        return _stack(answers, X.shape[:-2])

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


# ---- rows and points ----


def _as_arrays(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and observations as arrays of their own."""
    if hasattr(dataset, "query_points"):
        X, Y = dataset.query_points, dataset.observations
    else:
        try:
            X, Y = dataset
        except (TypeError, ValueError):
            raise InvalidDataError(
                "wanted query_points and observations, or a pair (X, Y), got a "
                f"{type(dataset).__name__}"
            ) from None
    return as_float64("X", as_real_array("X", X)), as_float64("Y", as_real_array("Y", Y))


def _as_rows(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """X [N, D] and Y [N, P]."""
    X, Y = _as_arrays(dataset)
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y):
        raise InvalidDataError(
            f"wanted X [N, D] and Y [N, P], got {list(X.shape)} and {list(Y.shape)}"
        )
    return X, Y


def _pointwise(predict: Any, query_points: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Predictions at points [..., D], one by one."""
    points = _points(query_points, 1)
    mean, variance = predict(tf.reshape(points, [-1, points.shape[-1]]))
    shape = tf.concat([tf.shape(points)[:-1], tf.shape(mean)[-1:]], axis=0)
    return tf.reshape(mean, shape), tf.reshape(variance, shape)


def _batchwise(predict: Any, query_points: Any) -> tuple[tf.Tensor, ...]:
    """Predictions at batches of points [..., B, D], batch by batch."""
    points = _points(query_points, 2)
    *leading, size, dim = points.shape
    batches = tf.unstack(tf.reshape(points, [-1, size, dim]))
    return _stack([predict(batch) for batch in batches], leading)


def _stack(answers: list[Any], leading: Any) -> tuple[tf.Tensor, ...]:
    """Each part of the answers to one question after another, under these leading axes."""
    return tuple(
        tf.reshape(tf.stack(parts), [*leading, *parts[0].shape])
        for parts in zip(*answers, strict=True)
    )


def _points(values: Any, least: int) -> tf.Tensor:
    """Points in float64, with at least so many axes; tensors stay what they are, for gradients."""
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
