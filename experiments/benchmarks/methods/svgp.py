"""GPflow's SVGP on a stream, on the newest batch or with replay, and both sparse GPs on all data
(Hensman, Fusi & Lawrence 2013; Titsias 2009).
"""

from __future__ import annotations

import gpflow
import numpy as np
import tensorflow as tf

from experiments.benchmarks.methods.learner import Held, Prediction, Setup

POINTS = 240
STEPS_OF_LBFGS = {POINTS: 150, 1000: 60}
"""For so many points of SGPR; more of them would take an hour, and gain little."""
MINIBATCH = 256
RATE = 0.01
FEWEST_STEPS = 10
"""For a batch, however small."""


def likelihood_of(setup: Setup) -> gpflow.likelihoods.Likelihood:
    if setup.classes:
        return gpflow.likelihoods.Bernoulli()
    return gpflow.likelihoods.Gaussian(setup.hyperparameters.noise)


def predicted(model: gpflow.models.GPModel, X: np.ndarray, classes: bool) -> Prediction:
    mean, variance = (moment.numpy()[:, 0] for moment in model.predict_y(X))
    return Prediction.of_label(mean) if classes else Prediction(mean, variance)


def num_bytes(model: gpflow.models.GPModel) -> int:
    return sum(parameter.numpy().nbytes for parameter in model.parameters)


class OnlineSVGP:
    """Adam steps on minibatches: half of each from the newest batch, half from a reservoir.

    :param steps: The number of steps of Adam for a batch of 500, fewer in proportion for smaller
        ones, but at least ten.
    :param memory: The size of the reservoir, a random sample of all points so far (Vitter 1985); 0
        for none.
    """

    def __init__(self, setup: Setup, steps: int, memory: int) -> None:
        self._setup, self._steps, self._memory = setup, setup.iterations(steps), memory
        self._rng = np.random.default_rng(setup.seed)
        self._X, self._Y = np.empty((0, setup.input_dim)), np.empty((0, 1))
        self._seen = 0
        self._model: gpflow.models.SVGP | None = None

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        self._grow(X)
        self._seen += len(X)
        self._train(X, Y)
        self._remember(X, Y)

    def _grow(self, X: np.ndarray) -> None:
        """The model gets inducing points at the first batches' inputs, and then keeps them."""
        if self._model is None:
            setup = self._setup
            self._model = gpflow.models.SVGP(
                setup.hyperparameters.kernel(), likelihood_of(setup), self._spread(X)
            )
            self._optimiser = tf.keras.optimizers.Adam(RATE)
            self._step = tf.function(self._adam_step, reduce_retracing=True)

    def _spread(self, X: np.ndarray) -> np.ndarray:
        """At inputs of the first batch, and around them at random if these are too few."""
        Z = X[self._rng.permutation(len(X))[:POINTS]]
        extra = min(POINTS, self._setup.num_data) - len(Z)
        return np.concatenate([Z, self._rng.standard_normal((max(extra, 0), X.shape[1]))])

    def _adam_step(self, X: tf.Tensor, Y: tf.Tensor, num_data: tf.Tensor) -> None:
        assert self._model is not None
        variables = self._model.trainable_variables
        with tf.GradientTape() as tape:
            mean, variance = self._model.predict_f(X)
            expected = self._model.likelihood.variational_expectations(X, mean, variance, Y)
            loss = self._model.prior_kl() - num_data * tf.reduce_mean(expected)
        self._optimiser.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def _train(self, X: np.ndarray, Y: np.ndarray) -> None:
        num_data = self._seen if self._memory else len(X)
        for _ in range(max(FEWEST_STEPS, round(self._steps * len(X) / 500))):
            old = MINIBATCH // 2 if len(self._X) else 0
            new = self._rng.integers(len(X), size=MINIBATCH - old)
            kept = self._rng.integers(max(len(self._X), 1), size=old)
            weights = tf.constant(float(num_data), tf.float64)
            rows = np.concatenate([X[new], self._X[kept]]), np.concatenate([Y[new], self._Y[kept]])
            self._step(*map(tf.constant, rows), weights)

    def _remember(self, X: np.ndarray, Y: np.ndarray) -> None:
        for number, (x, y) in enumerate(zip(X, Y, strict=True), self._seen - len(X)):
            if len(self._X) < self._memory:
                self._X, self._Y = np.vstack([self._X, x]), np.vstack([self._Y, y])
            elif self._memory and (place := self._rng.integers(number + 1)) < self._memory:
                self._X[place], self._Y[place] = x, y

    def predict(self, X: np.ndarray) -> Prediction:
        assert self._model is not None
        return predicted(self._model, X, self._setup.classes)

    def held(self) -> Held:
        assert self._model is not None
        number = int(self._model.inducing_variable.num_inducing) + len(self._X)
        kept = self._X.nbytes + self._Y.nbytes
        return Held(number, "points", 3 * num_bytes(self._model) + kept)  # and Adam's two moments


class AllAtOnce:
    """One fit to all data: SGPR by L-BFGS, or SVGP by Adam on minibatches."""

    def __init__(self, setup: Setup, kind: str, number: int) -> None:
        self._setup, self._kind, self._number = setup, kind, number
        self._rng = np.random.default_rng(setup.seed)

    def update(self, X: np.ndarray, Y: np.ndarray) -> None:
        Z = X[self._rng.permutation(len(X))[: self._number]]
        kernel = self._setup.hyperparameters.kernel()
        self._bytes = X.nbytes + Y.nbytes
        if self._kind == "SVGP":
            self._model = gpflow.models.SVGP(kernel, likelihood_of(self._setup), Z, num_data=len(X))
            self._adam(X, Y)
            return
        self._model = gpflow.models.SGPR((X, Y), kernel, Z)
        self._model.likelihood.variance.assign(self._setup.hyperparameters.noise)
        gpflow.optimizers.Scipy().minimize(
            self._model.training_loss,
            self._model.trainable_variables,
            options={"maxiter": self._setup.iterations(STEPS_OF_LBFGS[self._number])},
        )

    def _adam(self, X: np.ndarray, Y: np.ndarray) -> None:
        data = tf.data.Dataset.from_tensor_slices((X, Y)).repeat().shuffle(len(X), seed=0)
        batches = iter(data.batch(MINIBATCH))
        loss = self._model.training_loss_closure(batches)
        optimiser, variables = tf.keras.optimizers.Adam(RATE), self._model.trainable_variables

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                value = loss()
            gradients = tape.gradient(value, variables)
            optimiser.apply_gradients(zip(gradients, variables, strict=True))

        for _ in range(self._setup.iterations(3000)):
            step()

    def predict(self, X: np.ndarray) -> Prediction:
        labels = self._setup.classes and self._kind == "SVGP"
        return predicted(self._model, X, labels)

    def held(self) -> Held:
        number = int(self._model.inducing_variable.num_inducing)
        return Held(number, "points", self._bytes + num_bytes(self._model))


def newest(setup: Setup, steps: int) -> OnlineSVGP:
    return OnlineSVGP(setup, steps, 0)


def replay(setup: Setup, steps: int) -> OnlineSVGP:
    return OnlineSVGP(setup, steps, 1000)


def sgpr_at_once(setup: Setup, number: int) -> AllAtOnce:
    return AllAtOnce(setup, "SGPR", number)


def svgp_at_once(setup: Setup, number: int) -> AllAtOnce:
    return AllAtOnce(setup, "SVGP", number)
