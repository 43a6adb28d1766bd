"""Mixture models: a location in clutter, and Bayesian Gaussian mixtures.

Both take data without inputs: a shard is ``(None, Y)`` with Y [N, D].
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import gpflow
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import (
    KL,
    Dirichlet,
    DirichletNormalWishart,
    Factor,
    Gaussian,
    Normal,
    NormalWishart,
)
from streaming_gp.expfam.normal import require_gaussian_family
from streaming_gp.inputs import (
    PositiveInteger,
    as_float64,
    as_real_array,
    require_decay,
    require_positive_finite,
    require_positive_integer,
    require_strategy,
    typed,
)
from streaming_gp.losses import Loss
from streaming_gp.numerics.linalg import LOG_TWO_PI, logdet_from_cholesky
from streaming_gp.numerics.quadrature import normal_nodes
from streaming_gp.pvi import FixedPointUpdate, LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.guards import Checks
from streaming_gp.pvi.model import compiled_for, factor_tensors, tensors
from streaming_gp.validation import as_matrix, require_posterior

__all__ = [
    "BirthUpdate",
    "Clutter",
    "ClutterModel",
    "GaussianMixture",
]

# ---- Gaussian mixtures, by variational message passing (Bishop 2006, section 10.2) ----

UNSEEN = 1e-3
"""Concentration at which a component gets no responsibility."""


@typed
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
    :param mean: The prior mean m [D], or one number for all coordinates; zero if None.
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
        K, D = self.num_components, self.num_dimensions
        if self.centres is not None and np.shape(self.centres) != (K, D):
            raise InvalidDataError(
                f"centres must have shape [{K}, {D}], got {list(np.shape(self.centres))}"
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
        K, parts = self.num_components, self.prior().components
        if self.centres is None:
            rng = np.random.default_rng(seed)
            means = rng.multivariate_normal(self._prior_mean(), self._prior_covariance(), K)
        else:
            means = as_matrix("centres", self.centres, self.num_dimensions)
        start = NormalWishart.from_standard(
            means, parts.strength, parts.dof, np.asarray(parts.scale_inverse)
        )
        even = Dirichlet(np.ones(K))
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
        require_posterior(q, self.prior())
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
        require_posterior(q, self.prior())
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
        mean = 0.0 if self.mean is None else self.mean
        return _location("mean", mean, self.num_dimensions)

    def _prior_covariance(self) -> np.ndarray:
        size = self.num_dimensions
        covariance = np.eye(size) if self.covariance is None else self.covariance
        return _covariance("covariance", covariance, size)


@typed
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
    attempts: PositiveInteger = 5

    def __post_init__(self) -> None:
        require_strategy("rule", self.rule, UpdateRule, "pvi.VariationalUpdate()")

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
        free_energy = compiled_for(model, "free energy", _free_energy)
        value = free_energy(tensors(q.natural), factor_tensors(task.cavity), *tensors(task.data))
        return replace(result, free_energy=float(value))


def _free_energy(model: GaussianMixture) -> Any:
    """``E_q[log p(y | θ)] − KL(q ‖ cavity)`` as a compiled function."""

    @tf.function(autograph=False, reduce_retracing=True)
    def compiled(natural: Any, cavity: Any, X: tf.Tensor, Y: tf.Tensor) -> tf.Tensor:
        q = DirichletNormalWishart(*natural)
        expected = model.expected_log_likelihood(q, X, Y, None)
        return expected - KL()(q, Factor(DirichletNormalWishart, *cavity))

    return compiled


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
    """
    Y = as_matrix("Y", Y, num_dimensions)
    if X is not None and np.shape(X) != (len(Y), 0):
        raise InvalidDataError(
            f"a mixture has no inputs: X must be None or [{len(Y)}, 0], got {list(np.shape(X))}"
        )
    return np.empty((len(Y), 0)), Y


# ---- the clutter problem (Minka 2001) ----

_NO_PROCESS = (
    "Clutter is the likelihood of one location, for ClutterModel, and not of a Gaussian process: "
    "for outliers there take gpflow.likelihoods.StudentT or losses.GeneralisedLikelihood"
)
LEAST = -600.0
"""The logarithm of odds of signal against clutter that are as good as none."""


class Clutter(gpflow.likelihoods.Likelihood):
    """``p(y | θ) = (1 − w) N(y; θ, Σ) + w N(y; ν, Λ)``, with the location θ as function value.

    :param covariance: The covariance of the signal Σ [D, D].
    :param share: The share of clutter w in [0, 1); at 0 the likelihood is a Gaussian of known
        covariance.
    :param clutter_mean: The mean of the clutter ν [D], or one number for all coordinates; zero if
        None.
    :param clutter_covariance: The covariance of the clutter Λ [D, D]; Σ if None.
    """

    def __init__(
        self,
        covariance: Any,
        share: float = 0.0,
        clutter_mean: Any = None,
        clutter_covariance: Any = None,
    ) -> None:
        require_decay("the share of clutter", share)
        self.covariance = _covariance("covariance", covariance)
        dimension = len(self.covariance)
        super().__init__(input_dim=None, latent_dim=dimension, observation_dim=dimension)
        self.share = share
        clutter_mean = 0.0 if clutter_mean is None else clutter_mean
        self.clutter_mean = _location("clutter_mean", clutter_mean, dimension)
        self.clutter_covariance = (
            self.covariance
            if clutter_covariance is None
            else _covariance("clutter_covariance", clutter_covariance, dimension)
        )

    def _log_prob(self, X: Any, F: Any, Y: Any) -> tf.Tensor:
        return self.log_density(Y - F, self.covariance, Y)

    def log_density(self, difference: Any, covariance: Any, Y: Any) -> tf.Tensor:
        """``log[(1 − w) N(difference; 0, covariance) + w N(Y; ν, Λ)]`` of rows [N, D]: [N]."""
        signal = np.log1p(-self.share) + _log_normal(difference, covariance)
        if self.share == 0.0:
            return signal
        return tf.reduce_logsumexp([signal, self.log_clutter(Y)], axis=0)

    def log_clutter(self, Y: Any) -> tf.Tensor:
        """``log[w N(Y; ν, Λ)]`` of rows [N, D]: [N]."""
        clutter = _log_normal(Y - self.clutter_mean, self.clutter_covariance)
        return np.log(self.share) + clutter

    def log_expected_power(self, y: Any, mean: Any, spread: Any, alpha: float) -> tf.Tensor:
        """``log E[p(y | θ)^α]`` for ``θ ~ N(mean, spread)`` and one y [D]: [].

        Without clutter the power is a Gaussian. With clutter c it is ``c^α`` and a bump,
        ``((s + c)^α − c^α)``, about as wide as the signal s = (1 − w) N(y; θ, Σ): whatever the
        spread, nodes lie where ``N(mean, spread)`` and the bump meet.

        :param mean: The mean [D].
        :param spread: The covariance [D, D].
        :param alpha: The power α > 0.
        """
        if self.share == 0.0:
            scale, *_ = _product(y, self.covariance / alpha, mean, spread)
            return scale + alpha * _log_peak(self.covariance)
        scale, centre, width = _product(y, self.covariance, mean, spread)
        nodes, weights = normal_nodes(len(self.covariance))
        theta = centre + tf.matmul(nodes, tf.linalg.cholesky(width), transpose_b=True)
        away = _log_normal(y - theta, self.covariance)
        clutter = self.log_clutter(y[None])[0]
        odds = np.log1p(-self.share) + away - clutter
        # log(e^u − 1) with u = α log(1 + s/c); odds below e^LEAST add nothing to any sum
        bump = tfp.math.softplus_inverse(alpha * tf.nn.softplus(tf.maximum(odds, LEAST)))
        smooth = bump - (away - _log_peak(self.covariance))
        return alpha * clutter + tf.nn.softplus(
            scale + tf.reduce_logsumexp(np.log(weights) + smooth)
        )

    def log_power_integral(self, F: tf.Tensor, power: float) -> tf.Tensor:
        """``log ∫ p(y | θ)^power dy`` of rows of F: [M].

        :raises InvalidDataError: if there is clutter: the integral has no closed form then.
        """
        if self.share > 0.0:
            raise InvalidDataError(
                "no closed integral of powers of a mixture: robust losses are for share 0"
            )
        logdet = np.linalg.slogdet(self.covariance)[1]
        dimension = len(self.covariance)
        one = dimension * (LOG_TWO_PI * (power - 1.0) + np.log(power)) + (power - 1.0) * logdet
        return tf.fill(tf.shape(F)[:1], tf.constant(-0.5 * one, F.dtype))

    def _refuse_process(self, *_: Any) -> Any:
        raise InvalidDataError(_NO_PROCESS)

    _predict_mean_and_var = _predict_log_density = _variational_expectations = _refuse_process


class ClutterModel:
    """The location of a Gaussian in clutter: ``p(θ) Π_n p(y_n | θ)`` with a Gaussian prior.

    Expectations under q are deterministic: over Gauss-Hermite nodes in one and two dimensions, and
    over a fixed Sobol sequence in more.

    :param likelihood: The likelihood of a data point.
    :param prior_variance: The prior variance of each coordinate.
    :param family: The family of the posterior, ``Normal``, ``MeanFieldNormal`` or
        ``IsotropicNormal``.
    :param prior_mean: The prior mean [D], or one number for all coordinates.
    :raises InvalidDataError: if the likelihood or the family is none, the variance is not positive,
        or the mean not finite and [D].
    """

    checks = Checks(max_precision_loss=np.inf)
    """The likelihood is not log-concave: a datum that may be clutter takes precision away."""

    def __init__(
        self,
        likelihood: Clutter,
        prior_variance: float = 100.0,
        family: type[Gaussian] = Normal,
        prior_mean: Any = 0.0,
    ) -> None:
        require_positive_finite("prior_variance", prior_variance)
        if not isinstance(likelihood, Clutter):
            raise InvalidDataError(f"likelihood must be a Clutter, got {likelihood!r:.100}")
        require_gaussian_family(family)
        self.prior_mean = _location("prior_mean", prior_mean, len(likelihood.covariance))
        self.likelihood = likelihood
        self.prior_variance = prior_variance
        self.family = family
        self.num_dimensions = len(likelihood.covariance)
        self._nodes, self._weights = normal_nodes(self.num_dimensions)

    def prior(self) -> Gaussian:
        """``N(θ; prior_mean, prior_variance I)``."""
        scale = np.sqrt(self.prior_variance) * np.eye(self.num_dimensions)
        return self.family.from_mean_scale(self.prior_mean, scale).as_arrays()

    def initial(self, seed: int) -> Gaussian:
        """The prior."""
        return self.prior()

    def default_update(self) -> UpdateRule:
        """For ``pvi.run``: natural gradients."""
        return FixedPointUpdate()

    def as_data(self, X: Any, Y: Any) -> tuple[np.ndarray, np.ndarray]:
        """X without columns, and Y [N, D].

        :raises InvalidDataError: if there are inputs, or Y is not what the model can take.
        """
        return as_points(X, Y, self.num_dimensions)

    def expected_log_likelihood(
        self, q: Gaussian, X: tf.Tensor, Y: tf.Tensor, seed: Any
    ) -> tf.Tensor:
        """``Σ_n E_q[log p(y_n | θ)]``: []."""
        return tf.reduce_sum(self._weights * self.log_likelihood(q.from_white(self._nodes), X, Y))

    def expected_loss(
        self, q: Gaussian, X: tf.Tensor, Y: tf.Tensor, seed: Any, loss: Loss
    ) -> tf.Tensor:
        """``Σ_n E_q[loss(θ, y_n)]``: []."""
        F, many = _pairs(q.from_white(self._nodes), Y)
        by_node = tf.reshape(loss(self.likelihood, F, many), [len(self._nodes), -1])
        return tf.reduce_sum(self._weights * tf.reduce_sum(by_node, axis=1))

    def log_likelihood(self, theta: tf.Tensor, X: Any, Y: Any) -> tf.Tensor:
        """``Σ_n log p(y_n | θ_s)`` for locations ``theta`` [S, D]: [S]."""
        F, many = _pairs(theta, Y)
        values = tf.reshape(self.likelihood.log_prob(many[:, :0], F, many), [-1, tf.shape(Y)[0]])
        return tf.reduce_sum(values, axis=1)

    def log_tilted(self, cavity: Gaussian, x: tf.Tensor, y: tf.Tensor, alpha: float) -> tf.Tensor:
        """``log ∫ cavity(θ) p(y | θ)^α dθ`` for one y [D]: [].

        Closed for α = 1 (Minka 2001, section 3.3), else by quadrature.
        """
        mean, covariance = cavity.moments()
        spread = _full(covariance, self.num_dimensions)
        if alpha != 1.0:
            return self.likelihood.log_expected_power(y, mean, spread, alpha)
        total = self.likelihood.covariance + spread
        return self.likelihood.log_density((y - mean)[None], total, y[None])[0]

    def responsibilities(self, q: Gaussian, Y: Any) -> np.ndarray:
        """P(y_n is signal), given y_n and what q says of θ: [N].

        Under ``q / t^(1/N)`` this is the factor ``g_n(h_n)`` that stochastic EP has of the latent
        label of a datum (Li et al. 2015, supplement, B.2): a number that is made when it is wanted,
        as no other site depends on it.

        :param q: The posterior of θ without these data, or with them.
        :param Y: The data points [N, D].
        :raises InvalidDataError: if q or Y is not what the model takes.
        """
        require_posterior(q, self.prior())
        Y = self.as_data(None, Y)[1]
        mean, covariance = q.moments()
        total = self.likelihood.covariance + _full(covariance, self.num_dimensions)
        both = self.likelihood.log_density(Y - mean, total, Y)
        signal = np.log1p(-self.likelihood.share) + _log_normal(Y - mean, total)
        return np.asarray(np.exp(signal - both))


def _pairs(theta: tf.Tensor, Y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Every row of ``theta`` [S, D] with every data point: [S N, D] both."""
    F = tf.repeat(theta, tf.shape(Y)[0], axis=0)
    return F, tf.tile(Y, [tf.shape(theta)[0], 1])


def _location(name: str, values: Any, dimension: int) -> np.ndarray:
    point = as_float64(name, as_real_array(name, values))
    if point.shape not in ((), (dimension,)) or not np.isfinite(point).all():
        raise InvalidDataError(f"{name} must be finite, [{dimension}] or a number, got {point}")
    return np.broadcast_to(point, (dimension,)).copy()


def _covariance(name: str, values: Any, dimension: int | None = None) -> np.ndarray:
    covariance = np.atleast_2d(as_float64(name, as_real_array(name, values)))
    try:
        np.linalg.cholesky(covariance)
        is_sound = dimension in (None, len(covariance)) and np.isfinite(covariance).all()
        is_sound = is_sound and np.allclose(covariance, covariance.T)
    except np.linalg.LinAlgError:
        is_sound = False
    if not is_sound:
        raise InvalidDataError(f"{name} must be symmetric and positive definite, got {covariance}")
    return covariance


def _log_normal(difference: Any, covariance: Any) -> tf.Tensor:
    """``log N(difference; 0, covariance)`` of rows [N, D]: [N]."""
    chol = tf.linalg.cholesky(covariance)
    white = tf.linalg.triangular_solve(chol, tf.transpose(difference))
    dimension = tf.cast(tf.shape(difference)[1], white.dtype)
    constant = logdet_from_cholesky(chol) + dimension * LOG_TWO_PI
    return -0.5 * (tf.reduce_sum(tf.square(white), axis=0) + constant)


def _log_peak(covariance: np.ndarray) -> float:
    """``log N(0; 0, covariance)``."""
    return float(-0.5 * np.linalg.slogdet(2.0 * np.pi * covariance)[1])


def _product(
    y: Any, covariance: np.ndarray, mean: Any, spread: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Of ``N(θ; mean, spread) exp(−½ (y − θ)ᵀ covariance⁻¹ (y − θ))`` the logarithm of the integral
    [], and of the Gaussian that it is in proportion to mean [D] and covariance [D, D].
    """
    chol = tf.linalg.cholesky(spread + covariance)
    integral = _log_normal((y - mean)[None], spread + covariance)[0] - _log_peak(covariance)
    gain = tf.matmul(spread, tf.linalg.cholesky_solve(chol, tf.eye(len(covariance), dtype=y.dtype)))
    return integral, mean + tf.linalg.matvec(gain, y - mean), tf.matmul(gain, covariance)


def _full(covariance: tf.Tensor, dimension: int) -> tf.Tensor:
    """[D, D] from what a family keeps."""
    if len(covariance.shape) == 2:
        return covariance
    return tf.linalg.diag(covariance * tf.ones(dimension, covariance.dtype))
