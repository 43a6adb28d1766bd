"""The contract of a bound."""

from __future__ import annotations

from typing import Any, ClassVar

import gpflow
import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import Dense, LocalBound, PointHyperparameters, PrivatePseudoPoints, Process
from streaming_gp.gp.compilation import compile_gp
from streaming_gp.gp.fit.fitted import Batch
from streaming_gp.gp.fit.objective import NO_SITES
from streaming_gp.testing.assertions import ensure, ensure_close, ensure_storable
from streaming_gp.testing.pseudo_points import (
    INPUT_DIM,
    KNOWN,
    NOISE_VARIANCE,
    batch,
    ensure_continues,
    ensure_predicts,
    ensure_undone,
    modules,
    regression,
    reloaded,
)

NUM_DATA = 10
POINTS = PrivatePseudoPoints(4)
EVERY_INPUT = PrivatePseudoPoints(NUM_DATA, optimise_locations=False)
SIZES = (9, 1, 14)
NEXT = len(SIZES)
LEARNED = PointHyperparameters()
STEP, DERIVATIVE = 1e-5, 1e-4
THROUGH_NUGGET = 1e-3  # the white noise of the points, which exact regression does not have


def check_local_bound(bound: LocalBound, is_exact_at_inputs: bool = True) -> None:
    """Check that a bound serves local fits in all that they ask of it.

    It is a frozen dataclass that files can hold. With Gaussian noise it is finite, and its
    gradients by ε and by pseudo-inputs are those that finite differences find; batches of any size
    are fitted by functions that were compiled once; an update that raises leaves nothing behind; a
    model with it streams, is saved, loaded and revisited, and gives the same twice, bit for bit. If
    it accepts a Bernoulli likelihood, it also learns from labels.

    :param bound: The bound, which accepts Gaussian noise.
    :param is_exact_at_inputs: Whether the bound is the log evidence where every input has a
        pseudo-point and the noise is Gaussian, so that predictions are those of exact regression.
    :raises AssertionError: on the first thing that does not hold.
    """
    ensure(isinstance(bound, LocalBound), "a bound derives from streaming_gp.gp.LocalBound")
    ensure_storable(bound, "a local bound")
    ensure(_accepts(bound, modules()["likelihood"]), "a bound accepts Gaussian noise")
    if is_exact_at_inputs:
        _check_exactness(bound)
    learned = _check_stream(bound)
    _check_gradients(bound, learned)
    if _accepts(bound, gpflow.likelihoods.Bernoulli()):
        _check_labels(bound)


def _accepts(bound: LocalBound, likelihood: Any) -> bool:
    try:
        bound.check(likelihood)
    except InvalidDataError:
        return False
    return True


def _check_exactness(bound: LocalBound) -> None:
    """One batch with a point at every input is exact regression (Rasmussen & Williams 2006)."""
    data, (X, _) = batch(0, NUM_DATA), batch(1)
    model = regression(EVERY_INPUT, bound, hyperparameters=KNOWN)
    info = model.update(data)
    ensure(info.num_pseudo_points == NUM_DATA, "every input has a point")
    exact = gpflow.models.GPR(data, modules()["kernel"], noise_variance=NOISE_VARIANCE)
    evidence = exact.log_marginal_likelihood()
    sentence = "with a point at every input the free energy is the log evidence"
    ensure_close(info.free_energy, evidence, sentence, THROUGH_NUGGET)
    for value, wanted in zip(model.predict_f(X), exact.predict_f(X), strict=True):
        sentence = "with a point at every input predictions are those of exact regression"
        ensure_close(value, wanted, sentence, THROUGH_NUGGET)


def _check_gradients(bound: LocalBound, cavity: Process) -> None:
    """At a random direction in ε and in pseudo-inputs, under a cavity that knows something."""
    model = regression(POINTS, bound)
    dims = (INPUT_DIM, 1)
    fitter = compile_gp(model.modules, model.settings, dims).fitter
    known = Process(cavity.pseudo_observations, model.prior().hyperparameters)
    at_hand = Batch("", batch(3), 0, Dense())
    problem = fitter.problem(known, at_hand, fitter.start(known, at_hand, POINTS.place))
    offsets = np.zeros(np.size(problem.Z))
    variables = fitter.local.hyperparameters.initial(fitter.local.parameters, True)

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        places, rest = np.split(point, [len(offsets)])
        return fitter.objective(places, rest, problem, NO_SITES)

    _check_derivative(objective, np.concatenate([offsets, variables]), len(offsets))


def _check_derivative(objective: Any, point: np.ndarray, num_places: int) -> None:
    loss, gradient = objective(point)
    ensure(np.isfinite(loss), "the free energy is finite")
    ensure(np.isfinite(gradient).all(), "the gradient of the free energy is finite")
    ensure(np.any(gradient[num_places:]), "the free energy has a gradient by ε")
    direction = np.random.default_rng(0).standard_normal(len(point))
    for by, part in (("pseudo-inputs", slice(num_places)), ("ε", slice(num_places, None))):
        along = np.zeros(len(point))
        along[part] = direction[part]
        ahead, behind = (objective(point + step * along)[0] for step in (STEP, -STEP))
        sentence = f"the gradient by {by} is that which finite differences find"
        ensure_close(gradient @ along, (ahead - behind) / (2.0 * STEP), sentence, DERIVATIVE)


def _check_stream(bound: LocalBound) -> Process:
    """Batches of several sizes by functions that are traced once; gives what was learned."""
    model = regression(POINTS, bound, kernel=_CountingKernel(), hyperparameters=LEARNED)
    calls = []
    for seed, size in enumerate(SIZES):
        model.update(batch(seed, size))
        ensure_predicts(model, batch(seed, size)[0])
        calls.append(_CountingKernel.calls)
    sentence = "functions are traced at the first batch only, whatever the sizes of later ones"
    ensure(calls == [calls[0]] * len(SIZES), sentence)
    ensure_undone(model, batch(NEXT))
    ensure_continues(model, reloaded(model, kernel=_CountingKernel()), batch(NEXT))
    info = model.revisit(f"batch-{NEXT}", batch(NEXT))
    ensure(np.isfinite(info.free_energy), "the free energy of a revisit is finite")
    ensure_predicts(model, batch(0)[0])
    return model.posterior_process


class _CountingKernel(gpflow.kernels.SquaredExponential):
    """Python calls it only while a function is traced; all of the class are counted together."""

    calls: ClassVar[int] = 0

    def K(self, X: Any, X2: Any = None) -> Any:
        type(self).calls += 1
        return super().K(X, X2)


def _check_labels(bound: LocalBound) -> None:
    model = regression(
        POINTS, bound, likelihood=gpflow.likelihoods.Bernoulli(), hyperparameters=KNOWN
    )
    for seed in range(2):
        info = model.update(batch(seed, labels=True))
        ensure(np.isfinite(info.free_energy), "the free energy of labels is finite")
    ensure_predicts(model, batch(2)[0])
