"""Bayesian Gaussian mixtures by variational message passing (Bishop 2006, section 10.2)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import (
    KL,
    Dirichlet,
    DirichletNormalWishart,
    Factor,
    NormalWishart,
)
from streaming_gp.inputs import require_positive_integer
from streaming_gp.numerics.linalg import LOG_TWO_PI
from streaming_gp.pvi import FixedPointUpdate, LocalResult, LocalTask, UpdateRule
from streaming_gp.validation import as_matrix

UNSEEN = 1e-3
"""Concentration at which a component gets no responsibility."""


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """K Gaussians in D dimensions with unknown weights, means and precisions.

    Given q, the optimal responsibilities are closed form; with them the model is conjugate. Its
    rule is therefore ``FixedPointUpdate``: one undamped step is one round of variational message
    passing. A client a data point, or one pass, make the online methods of PVI 2018, table 1.

    :param num_components: The number of components K.
    :param num_dimensions: The number of dimensions D of the data.
    :param concentration: The concentration of the Dirichlet prior for each weight; 1/K if None.
    :param strength: The number of data points β that the prior's means stand for.
    :param mean: The prior mean m [D]; zero if None.
    :param dof: The prior's degrees of freedom ν, above D − 1; D if None.
    :param covariance: The covariance [D, D] with ``W⁻¹ = ν covariance``; the identity if None.
    :param centres: The means [K, D] where the components start, to break their symmetry; drawn from
        ``N(mean, covariance)`` if None.
    """

    num_components: int
    num_dimensions: int
    concentration: float | None = None
    strength: float = 1.0
    mean: Any = None
    dof: float | None = None
    covariance: Any = None
    centres: Any = None

    def __post_init__(self) -> None:
        require_positive_integer("num_components", self.num_components)
        require_positive_integer("num_dimensions", self.num_dimensions)
        if not self.prior().is_proper:
            raise InvalidDataError(
                "the prior is no distribution: concentration and strength must be positive, dof "
                f"above {self.num_dimensions - 1}, and covariance positive definite"
            )

    # ---- the model, for update rules ----

    def prior(self) -> DirichletNormalWishart:
        """A Dirichlet times K equal normal-Wisharts."""
        K, D = self.num_components, self.num_dimensions
        alpha = 1.0 / K if self.concentration is None else self.concentration
        dof = float(D) if self.dof is None else self.dof
        scale_inverse = dof * self._prior_covariance()
        components = NormalWishart.from_standard(
            np.tile(self._prior_mean(), (K, 1)),
            np.full(K, float(self.strength)),
            np.full(K, dof),
            np.tile(scale_inverse, (K, 1, 1)),
        )
        return DirichletNormalWishart.of(Dirichlet(np.full(K, alpha)), components).as_arrays()

    def initial(self, seed: int) -> DirichletNormalWishart:
        """The prior with its means moved apart."""
        prior = self.prior()
        parts = prior.components
        start = NormalWishart.from_standard(
            self._starts(seed), parts.strength, parts.dof, np.asarray(parts.scale_inverse)
        )
        even = Dirichlet(np.ones(self.num_components))
        return DirichletNormalWishart.of(even, start).as_arrays()

    def default_update(self) -> UpdateRule:
        """For ``pvi.run``: variational message passing."""
        return FixedPointUpdate()

    def as_data(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """X without columns, and Y [N, D].

        :raises InvalidDataError: if there are inputs, or Y is not what the model can take.
        """
        return as_points(X, Y, self.num_dimensions)

    def expected_log_likelihood(
        self, q: DirichletNormalWishart, X: tf.Tensor, Y: tf.Tensor, seed: Any
    ) -> tf.Tensor:
        """``Σ_n log Σ_k exp E_q[log π_k N(y_n; μ_k, Λ_k⁻¹)]``: with the best responsibilities."""
        return tf.reduce_sum(tf.reduce_logsumexp(self.log_joint(q, Y), axis=1))

    def natural_gradient(
        self, q: DirichletNormalWishart, X: tf.Tensor, Y: tf.Tensor, seed: Any
    ) -> Factor:
        """Expected statistics ``Σ_n r_nk (1, 1, y_n, 1, y_n y_nᵀ)``: the gradient by the mean
        parameters, in which the expectation above is a log-sum of exponentials of linear functions.
        """
        r = tf.nn.softmax(self.log_joint(q, Y), axis=1)
        counts = tf.reduce_sum(r, axis=0)
        sums = tf.matmul(r, Y, transpose_a=True)
        squares = tf.einsum("nk,nd,ne->kde", r, Y, Y)
        return Factor(DirichletNormalWishart, (counts, counts, sums, counts, squares))

    # ---- under a posterior ----

    def log_joint(self, q: DirichletNormalWishart, Y: Any) -> tf.Tensor:
        """``E_q[log π_k + log N(y_n; μ_k, Λ_k⁻¹)]``: [N, K]."""
        parts = q.components
        constant = self.num_dimensions * LOG_TWO_PI
        log_normal = parts.expected_log_determinant() - parts.expected_squared_distance(Y)
        return q.weights.mean_parameters()[0] + 0.5 * (log_normal - constant)

    def responsibilities(self, q: DirichletNormalWishart, Y: Any) -> np.ndarray:
        """Of component k for each row of Y [N, D]: [N, K], rows sum to one."""
        Y = as_matrix("Y", Y, self.num_dimensions)
        return np.asarray(tf.nn.softmax(self.log_joint(q, Y), axis=1))

    def claimed(self, q: DirichletNormalWishart) -> np.ndarray:
        """Whether the weight of a component has grown by at least one data point: [K]."""
        growth = np.asarray(q.concentration) - np.asarray(self.prior().concentration)
        return np.asarray(growth > 1.0)

    def predict_log_density(self, q: DirichletNormalWishart, Y: Any) -> np.ndarray:
        """``log E_q[p(y)]`` for each row of Y [N, D]: a mixture of Student's t (Bishop 2006,
        eq. 10.81): [N].
        """
        Y = as_matrix("Y", Y, self.num_dimensions)
        parts = q.components
        dof = parts.dof + 1.0 - self.num_dimensions
        share = parts.strength / (1.0 + parts.strength) * dof
        chol = tf.linalg.cholesky(parts.scale_inverse / share[:, None, None])
        student = tfp.distributions.MultivariateStudentTLinearOperator(
            dof, parts.mean, tf.linalg.LinearOperatorLowerTriangular(chol)
        )
        log_density = student.log_prob(Y[:, None, :])
        return np.asarray(tf.reduce_logsumexp(np.log(q.weights.mean) + log_density, axis=1))

    def _prior_mean(self) -> np.ndarray:
        zero = np.zeros(self.num_dimensions)
        return zero if self.mean is None else np.asarray(self.mean, np.float64)

    def _prior_covariance(self) -> np.ndarray:
        identity = np.eye(self.num_dimensions)
        return identity if self.covariance is None else np.asarray(self.covariance, np.float64)

    def _starts(self, seed: int) -> np.ndarray:
        if self.centres is not None:
            return as_matrix("centres", self.centres, self.num_dimensions)
        rng = np.random.default_rng(seed)
        size = self.num_components
        return rng.multivariate_normal(self._prior_mean(), self._prior_covariance(), size)


@dataclass(frozen=True)
class BirthUpdate:
    """Message passing that also starts with one component more, on data that the others explain
    badly; the fit of the highest local free energy is the answer.

    Components that no data have claimed are all alike, and message passing keeps them so: a stream
    needs a start that tells one of them apart. It is the cavity with a newborn, as in q itself
    other components may have been stretched over the data already. Only starts differ, and fixed
    points are those of the rule. For sequential visits: clients that give birth in parallel would
    use one component for different clusters.

    :param rule: The rule that fits.
    :param attempts: The number of starts to try in one visit.
    """

    rule: UpdateRule = field(default_factory=lambda: FixedPointUpdate(steps=20))
    attempts: int = 5

    def __call__(self, task: LocalTask) -> LocalResult:
        model = task.model
        if not isinstance(model, GaussianMixture):
            name = type(model).__name__
            raise InvalidDataError(f"BirthUpdate is for a GaussianMixture, not for {name}")
        rng = np.random.default_rng(task.seed)
        start: Any = task.posterior
        base: Any = task.cavity.normalised()
        if not model.claimed(start).any():  # or the data would be shared out among equals
            start = base = with_birth(model, base, task.data[1], rng)
        best = self._fit(model, replace(task, start=start))
        for _ in range(self.attempts):
            if model.claimed(base).all():
                break
            start = with_birth(model, base, task.data[1], rng)
            other = self._fit(model, replace(task, start=start))
            if other.free_energy > best.free_energy:
                best, base = other, start
        return best

    def _fit(self, model: GaussianMixture, task: LocalTask) -> LocalResult:
        result = self.rule(task)
        q: Any = (task.cavity * result.factor).normalised()
        X, Y = task.data
        expected = model.expected_log_likelihood(q, X, Y, None)
        return replace(result, free_energy=float(expected - KL()(q, task.cavity)))


def with_birth(
    model: GaussianMixture, q: DirichletNormalWishart, Y: np.ndarray, rng: np.random.Generator
) -> DirichletNormalWishart:
    """q with one unclaimed component moved to a datum, drawn as k-means++ draws its centres: the
    worse q explains a datum, the likelier.
    """
    k = int(np.argmin(model.claimed(q)))
    score = np.asarray(model.log_joint(q, Y)).max(axis=1)
    badness = score.max() - score + 1e-9
    datum = rng.choice(len(Y), p=badness / badness.sum())
    weights, mean = np.array(q.concentration), np.array(q.components.mean)
    strength, dof = np.array(q.strength), np.array(q.components.dof)
    weights[~model.claimed(q)] = UNSEEN
    weights[k], mean[k], strength[k] = 0.5 * len(Y), Y[datum], len(Y)
    components = NormalWishart.from_standard(
        mean, strength, dof, np.asarray(q.components.scale_inverse)
    )
    return DirichletNormalWishart.of(Dirichlet(weights), components).as_arrays()


def as_points(X: Any, Y: Any, num_dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """An X without columns [N, 0], and Y [N, D], float64.

    :param X: None, or an array without columns.
    :param Y: The data points [N, D].
    :param num_dimensions: The wanted D.
    :raises InvalidDataError: if there are inputs, or Y is not finite or of another shape.
    """
    Y = as_matrix("Y", Y, num_dimensions)
    if X is not None and np.shape(X) != (len(Y), 0):
        raise InvalidDataError(
            f"a mixture has no inputs: X must be None or [{len(Y)}, 0], got {list(np.shape(X))}"
        )
    return np.empty((len(Y), 0)), Y
