"""The stream as pure functions: state × data → state.

Each function takes the present :class:`.State`, the model's compiled :class:`.Functions` and its
own arguments, and returns a new state with what the caller is to be told. Nothing is changed in
place: :meth:`.Store.change` makes the new state the present one. Functions that return no state
answer a question of :meth:`.Store.ask`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.compilation import CompiledGP, Functions
from streaming_gp.gp.federated import refuse_foreign, refuse_sizes, refuse_variational
from streaming_gp.gp.fit.fitted import Batch, Fitted
from streaming_gp.gp.fit.optimiser import Callback, reporter
from streaming_gp.gp.fit.projection import GPLedger
from streaming_gp.gp.fit.sites import is_conjugate
from streaming_gp.gp.forgetting import faded, next_time
from streaming_gp.gp.hyperparameters import Arrival
from streaming_gp.gp.online import start
from streaming_gp.gp.online.gp import Part, factor_of
from streaming_gp.gp.outputs import MixedOutputs, outputs_of
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.state import State, drops_missing
from streaming_gp.gp.strategies.budget import compressed
from streaming_gp.gp.strategies.protocol import (
    MERGED,
    PseudoPointStrategy,
    check_allowed,
    check_change,
)
from streaming_gp.gp.structure import refuse_indices, refuse_lost_digits
from streaming_gp.inputs import (
    as_name,
    is_positive_integer,
    require_flag,
    require_fraction,
    require_probability,
)
from streaming_gp.numerics.threads import blas_threads_for
from streaming_gp.pvi.model import SecondOrder
from streaming_gp.validation import as_data, class_of_all

Data = tuple[Any, Any]


@dataclass(frozen=True)
class UpdateInfo:
    """The result of an update.

    :param batch_id: The name of the batch's factor in ``model.factors``.
    :param free_energy: The local free energy of the batch, in nats, of the factor that is kept;
        these add up to an estimate of the log evidence of the stream.
    :param num_pseudo_points: The number of points of this batch.
    :param iterations: The number of optimiser iterations.
    :param seconds: The wall time in seconds.
    :param nugget: The variance of the pseudo-points' white noise, in squared units of f.
    :param clipped_sites: The number of sites whose negative precision was cut off (likelihoods that
        are not log-concave), at the last step.
    :param unexplained: The variance of f at the data that the batch's points leave, over the
        variance of the noise (or what stands for it): a mean over the data. The
        prior's word for how over-confident the points may be; 0 with a point at every input.
    :param shown_error: The standard deviation of errors at the batch's points that its data show,
        over the predicted one: far above one the points are too few for the noise. None where the
        bound has a point at every input, or does not know.
    :param damping: The damping ρ with which the factor entered the ledger: the one that was asked
        for, times the share of it that the policy allowed; 0 if the old factor stayed.
    :param removed_fraction: The share of the batch's old factor that its cavity left out; 1 for a
        batch without one.

    >>> info = model.update((X, np.cos(X)))
    >>> info.batch_id, info.num_pseudo_points
    ('batch-1', 20)
    """

    batch_id: str
    free_energy: float
    num_pseudo_points: int
    iterations: int
    seconds: float
    nugget: float
    clipped_sites: int
    unexplained: float = 0.0
    shown_error: float | None = None
    damping: float = 1.0
    removed_fraction: float = 1.0


# ---- batches ----


def update(
    state: State,
    functions: Functions,
    data: Data,
    callback: Callback | None = None,
    batch_id: str | None = None,
    learn: bool | None = None,
    time: float | None = None,
    missing: str | None = None,
) -> tuple[State, UpdateInfo]:
    """One new batch; see :meth:`.StreamingGP.update`."""
    name = batch_name(f"batch-{state.num_updates}" if batch_id is None else batch_id)
    if name in state.factors:
        raise InvalidDataError(f"there is a factor {name!r} already; revisit() refines it")
    if learn is not None:
        require_flag("learn", learn)
    time = next_time(state.time, time)
    after, infos = step(state, functions, {name: data}, 1.0, callback, learn, time, missing=missing)
    return after, infos[name]


def revisit(
    state: State,
    functions: Functions,
    batch_id: str,
    data: Data,
    callback: Callback | None = None,
    damping: float = 1.0,
    missing: str | None = None,
) -> tuple[State, UpdateInfo]:
    """One further pass over a batch; see :meth:`.StreamingGP.revisit`."""
    name = _changeable(state, batch_id)
    require_fraction("damping", damping)
    after, infos = step(state, functions, {name: data}, damping, callback, missing=missing)
    return after, infos[name]


def synchronous_round(
    state: State, functions: Functions, shards: Mapping[str, Data], damping: float | None = None
) -> tuple[State, dict[str, UpdateInfo]]:
    """All shards at once; see :meth:`.StreamingGP.synchronous_round`."""
    check_allowed(state.settings.pseudo_points, "rounds")
    state.settings.hyperparameters.check_round()
    if not isinstance(shards, Mapping):
        raise InvalidDataError(
            f"wanted a mapping from the names of shards to (X, Y), got a {type(shards).__name__}"
        )
    if not shards:
        raise InvalidDataError("a synchronous round needs at least one shard, got none")
    rho = 1.0 / len(shards) if damping is None else damping
    require_fraction("damping", rho)
    named = {batch_name(name): data for name, data in shards.items()}
    return step(state, functions, named, rho, is_round=True)


def step(
    state: State,
    functions: Functions,
    shards: Mapping[str, Data],
    rho: float,
    callback: Callback | None = None,
    learn: bool | None = True,
    time: float | None = None,
    is_round: bool = False,
    missing: str | None = None,
) -> tuple[State, dict[str, UpdateInfo]]:
    """Forget, one step of the loop for all shards, tidy.

    :param shards: X [N, D] and Y [N, P] by name.
    :param rho: The damping ρ.
    :param callback: Called after every optimiser iteration.
    :param learn: Whether hyperparameters are learned; None where the schedule decides.
    :param time: The time of the next batch of the stream; None where there is no order.
    :param is_round: Whether ε is afterwards that of all shards together.
    :param missing: As of :meth:`.StreamingGP.update`.
    """
    start = perf_counter()
    settings, strategy = state.settings, state.settings.pseudo_points
    with blas_threads_for(state.ledger.posterior.num_pseudo_points):
        checked = _checked(state, functions, shards, missing)
        X, Y = next(iter(checked.values()))
        apart = _is_apart(state, functions, checked.values())
        state = state.apart if apart else state
        compiled = functions.of(state, (X.shape[1], Y.shape[1]), apart)
        only_class = _only_class(state, functions, checked)
        waits = learn is None and only_class is not None and _can_learn(state, compiled)
        num_new = sum(len(X) for name, (X, _) in checked.items() if name not in state.factors)
        num_data = state.num_data + num_new
        if learn is None:  # for the schedule the update with a second class is the first one
            number = state.num_updates if state.only_class is None else 0
            growth = num_data / state.num_data_learned if state.num_data_learned else np.inf
            surprise = partial(_surprise, state, compiled, checked)
            arrival = Arrival(number, state.shift, growth, num_data, surprise)
            learn = not waits and settings.learning.wants(arrival)

        ledger, new = state.ledger, shards.keys() - state.factors.keys()
        if time is not None:
            elapsed = 1.0 if state.time is None else time - state.time
            ledger = settings.forgetting.forget(ledger, elapsed)
        if time is not None and learn:
            ledger = settings.hyperparameters.forget(ledger)
        own = {name: compiled.outputs.data(data) for name, data in checked.items()}
        if (learn or waits) and not ledger.factors:
            compiled.fitter.warn_of_first(ledger.posterior, own.values())

        fits: dict[str, pvi.Fit[Fitted]] = {}
        for name, data in own.items():
            is_next = time is not None
            number = state.num_updates if is_next else fingerprint(data[0])
            batch = Batch(
                name,
                data,
                seed_of(settings.seed, number),
                state.conditioning,
                reporter(callback, name, settings.optimiser.most_iterations),
                hold=rho < 1.0,
                learn=learn,
            )
            fits[name] = partial(_fit, strategy, compiled, ledger, batch)
        done = pvi.step(ledger, fits, pvi.Damping(rho, len(fits)), settings.policy)

        reports = done.reports
        if is_round:
            epsilon = _point(state, done.ledger, compiled)
        else:
            (epsilon,) = (report.epsilon for report in reports.values())
        changes: dict[str, Any] = {"only_class": only_class, "num_data": num_data}
        if learn:
            changes["num_data_learned"] = num_data
            found = (report.conditioning for report in reports.values())
            changes["conditioning"] = next(filter(None, found), state.conditioning)
        if any(report.iterations for report in reports.values()):
            changes["shift"] = _shift(state, epsilon, compiled, done.ledger)
        if time is not None:
            changes["time"] = time
        kept = list(shards) if is_round else []
        after = strategy.tidy(compiled.fitter, done.ledger, epsilon, kept)
        following = _following(state, compiled, after, epsilon, len(new), **changes)
    seconds = perf_counter() - start
    return following, {name: _info(name, done, rho, seconds) for name in shards}


def fit_factor(
    state: State,
    functions: Functions,
    data: Data,
    cavity: Process,
    own: PseudoPointFactor | None,
    hold: bool = True,
) -> Fitted:
    """A client's fit; see :meth:`.StreamingGP.fit_factor`."""
    strategy = state.settings.pseudo_points
    check_allowed(strategy, "clients")
    state.settings.hyperparameters.check_round()
    ((X, Y),) = _checked(state, functions, {"": data}).values()
    _is_apart(state, functions, [(X, Y)])
    compiled = functions.of(state, (X.shape[1], Y.shape[1]))
    seed = seed_of(state.settings.seed, fingerprint(X))
    own_data = compiled.outputs.data((X, Y))
    batch = Batch("", own_data, seed, state.conditioning, hold=hold)
    ledger = pvi.Ledger(cavity, {} if own is None else {batch.name: own})
    question = pvi.LocalTask(None, None, cavity, None)
    return strategy.fit(compiled.fitter, ledger, question, batch)


# ---- factors that are there ----


def remove(state: State, functions: Functions, batch_id: str) -> tuple[State, None]:
    """A factor divided out; see :meth:`.StreamingGP.remove`."""
    name, compiled = _changeable(state, batch_id), functions.of(state)
    said, ledger, epsilon = state.factors[name].hyperparameters, state.ledger.without(name), None
    if said is None or any(np.any(part) for part in said.natural):
        again = compiled.fitter.data.learned_again(
            ledger, seed_of(state.settings.seed, 0), state.conditioning
        )
        ledger, epsilon = (ledger, None) if again is None else again
    return _following(state, compiled, ledger, epsilon), None


def fade(state: State, functions: Functions, power: float) -> tuple[State, None]:
    """All factors raised to a power; see :meth:`.StreamingGP.fade`."""
    require_probability("power", power)
    check_allowed(state.settings.pseudo_points, "fading")
    if not state.factors:
        return state, None
    return _following(state, functions.of(state), faded(state.ledger, power)), None


def compress(state: State, functions: Functions, number: int) -> tuple[State, float]:
    """All factors as one; see :meth:`.StreamingGP.compress`."""
    if not is_positive_integer(number):
        raise InvalidDataError(f"number of points must be a positive integer, got {number!r}")
    if state.ledger.posterior.num_pseudo_points <= number:
        return state, 0.0
    strategy = state.settings.pseudo_points
    check_allowed(strategy, "compression")
    compiled = functions.of(state)
    epsilon = _point(state, state.ledger, compiled)
    ledger, loss = compressed(
        compiled.fitter, state.ledger, number, epsilon, strategy.allowed.moves
    )
    return _following(state, compiled, ledger, epsilon), loss


def adopt(state: State, functions: Functions, ledger: GPLedger) -> tuple[State, None]:
    """A ledger from elsewhere; see :meth:`.StreamingGP.adopt`."""
    refuse_foreign(ledger, state.ledger.prior)
    compiled = functions.of(state, functions.dims_of(state, ledger.posterior))
    gp, input_dim = compiled.local.gp, compiled.local.input_dim
    sizes = input_dim, gp.num_groups, gp.num_latent // gp.num_groups
    refuse_sizes(ledger.posterior, sizes)
    num_new = len(ledger.factors.keys() - state.factors.keys())
    return _following(state, compiled, ledger, num_new=num_new, only_class=None), None


def go_back(state: State, functions: Functions, earlier: State) -> tuple[State, None]:
    """An earlier state; see :meth:`.StreamingGP.go_back`."""
    if not isinstance(earlier, State):
        raise InvalidDataError(f"state must be a model's, got a {type(earlier).__name__}")
    if (earlier.structure, earlier.settings) != (state.structure, state.settings):
        raise InvalidDataError("wanted an earlier state of this model, got that of another one")
    return earlier, None


def absorb(
    state: State,
    functions: Functions,
    name: str,
    observations: tuple[PseudoObservations, ...],
    log_evidence: float,
) -> tuple[State, None]:
    """Observations of one point at a time as a factor; see :meth:`.StreamingGP.absorb`.

    :param log_evidence: By which that of the model grows, in nats.
    """
    compiled = functions.of(state)
    epsilon = _point(state, state.ledger, compiled)
    posterior = state.ledger.posterior
    factor = factor_of(compiled.local, epsilon, posterior, observations, log_evidence)
    ledger = state.ledger.replaced(name, factor)
    return _following(state, compiled, ledger, epsilon, num_new=1), None


def online_parts(
    state: State,
    functions: Functions,
    budget: int,
    memory: float,
    own: Sequence[PseudoObservations | None] | None = None,
) -> tuple[Part, ...]:
    """All factors on at most so many points; see :meth:`.StreamingGP.online`.

    :param own: For each kernel, observations of one point at a time that are in no factor.
    """
    if None in state.dims:
        raise InvalidDataError("one point at a time wants a model that has learned a batch")
    compiled, posterior = functions.of(state), state.ledger.posterior
    epsilon = _point(state, state.ledger, compiled)
    return start.online_parts(compiled.local, epsilon, posterior, budget, memory, own)


# ---- the free energy by a point ε ----


def data_term(state: State, functions: Functions, q: Process, data: Data) -> SecondOrder:
    """See :meth:`.StreamingGP.data_term_by_hyperparameters`."""
    refuse_variational(q)
    X, Y = as_data(data, functions.modules["likelihood"], *state.dims)
    compiled = functions.of(state, (X.shape[1], Y.shape[1]))
    return compiled.terms.of_data(q, compiled.outputs.data((X, Y)))


def prior_term(state: State, functions: Functions, q: Process) -> SecondOrder:
    """See :meth:`.StreamingGP.prior_term_by_hyperparameters`."""
    refuse_variational(q)
    return functions.of(state, functions.dims_of(state, q)).terms.of_prior(q)


# ---- names, seeds and parts of a step ----


def _fit(
    strategy: PseudoPointStrategy,
    compiled: CompiledGP,
    ledger: GPLedger,
    batch: Batch,
    question: pvi.LocalTask,
) -> tuple[GPLedger | None, PseudoPointFactor, Fitted]:
    """A batch's fit as :func:`pvi.step` asks for it."""
    fitted = strategy.fit(compiled.fitter, ledger, question, batch)
    return fitted.ledger, fitted.factor, fitted


def batch_name(value: object) -> str:
    """The name of one batch's factor: a string, and not the name of the merged factor.

    :raises InvalidDataError: if it is none.
    """
    name = as_name("the name of a batch", value)
    if name == MERGED:
        raise InvalidDataError(f"{name!r} holds several batches, not one")
    return name


def fingerprint(X: np.ndarray) -> int:
    """A number that stands for a batch wherever it is visited.

    Rounds have a fixed point only if a batch meets the same random numbers at each visit, and it is
    the same for all schedules only if these do not depend on who is visited when.
    """
    return zlib.crc32(X.tobytes())


def seed_of(*entropy: int) -> int:
    """A seed that these numbers stand for together."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def _changeable(state: State, value: object) -> str:
    """The name of a factor that is there, is one batch's, and that no other rests on."""
    name = batch_name(value)
    if name not in state.factors:
        raise InvalidDataError(
            f"no factor {name!r} in the ledger: it has {list(state.factors)} "
            f"(batches under {MERGED!r} are kept together, not one by one)"
        )
    check_change(state.settings.pseudo_points, state.ledger, name)
    return name


def _checked(
    state: State, functions: Functions, shards: Mapping[str, Data], missing: str | None = None
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    checked: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    dims, drops = state.dims, drops_missing(state.settings.missing if missing is None else missing)
    for name, data in shards.items():
        X, Y = checked[name] = as_data(data, functions.modules["likelihood"], *dims, drops)
        refuse_indices(functions.modules["kernel"], X)
        refuse_lost_digits(functions.modules["kernel"], functions.modules["likelihood"], X, Y)
        dims = X.shape[1], Y.shape[1]
    return checked


def _is_apart(
    state: State, functions: Functions, checked: Iterable[tuple[np.ndarray, np.ndarray]]
) -> bool:
    """Whether entries of Y are missing, so that outputs are observed one by one.

    :raises InvalidDataError: if they cannot be.
    """
    if not any(np.isnan(Y).any() for _, Y in checked):
        return False
    kernel, likelihood = functions.modules["kernel"], functions.modules["likelihood"]
    if isinstance(outputs_of(kernel, likelihood, state.settings.num_latent_gps), MixedOutputs):
        return False
    if not is_conjugate(likelihood):
        raise InvalidDataError(
            "entries of Y can be left out where noise is Gaussian, or outputs are mixed by "
            f"LinearCoregionalization; got {type(likelihood).__name__}"
        )
    if not state.settings.pseudo_points.allowed.near:
        raise InvalidDataError(
            "entries of Y can be left out with a point at every input, "
            f'PrivatePseudoPoints("all"), got {state.settings.pseudo_points}'
        )
    return True


def _only_class(
    state: State, functions: Functions, checked: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> float | None:
    """The class of all labels so far and of these, if there is but one."""
    classes = {class_of_all(functions.modules["likelihood"], Y) for _, Y in checked.values()}
    if state.num_updates > 0:
        classes.add(state.only_class)
    return classes.pop() if len(classes) == 1 else None


def _can_learn(state: State, compiled: CompiledGP) -> bool:
    return len(state.settings.hyperparameters.limits(compiled.parameters)) > 0


def _surprise(
    state: State, compiled: CompiledGP, checked: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> float:
    """How far the first batch is from what is predicted; see :class:`.Arrival`."""
    if not state.settings.pseudo_points.allowed.near:
        return 1.0
    data = compiled.outputs.data(next(iter(checked.values())))
    return compiled.fitter.data.surprise(state.ledger.posterior, data, state.conditioning)


def _point(state: State, ledger: GPLedger, compiled: CompiledGP) -> np.ndarray:
    """The mean [E] of a ledger's q(ε), or the point that the parameters hold."""
    q = ledger.posterior.hyperparameters
    return compiled.parameters.epsilon_of(state.parameters) if q is None else np.asarray(q.mean)


def _shift(state: State, point: np.ndarray, compiled: CompiledGP, ledger: GPLedger) -> float:
    """How far the point estimate of ε moves, in units of its width."""
    if len(point) == 0:
        return 0.0
    before, q = _point(state, state.ledger, compiled), ledger.posterior.hyperparameters
    width = compiled.parameters.unit_log_widths() if q is None else np.sqrt(np.asarray(q.variance))
    return float(np.sqrt(np.mean(((point - before) / width) ** 2)))


def _following(
    state: State,
    compiled: CompiledGP,
    ledger: GPLedger,
    epsilon: np.ndarray | None = None,
    num_new: int = 0,
    **changes: Any,
) -> State:
    """The state with this ledger.

    :param epsilon: The values [E] of the parameters; by default a point estimate.
    :param num_new: The number of batches that are new to it.
    :param changes: Other fields that do not stay as they are.
    """
    epsilon = _point(state, ledger, compiled) if epsilon is None else epsilon
    return state.with_ledger(
        ledger,
        parameters={**state.parameters, **compiled.parameters.values_at(epsilon)},
        dims=compiled.dims,
        num_updates=state.num_updates + num_new,
        **changes,
    )


def _info(
    name: str, done: pvi.StepResult[Process, Fitted], rho: float, seconds: float
) -> UpdateInfo:
    report, factor = done.reports[name], done.ledger.factors.get(name)
    return UpdateInfo(
        batch_id=name,
        free_energy=report.free_energy,
        num_pseudo_points=0 if factor is None else len(factor.Z),
        iterations=report.iterations,
        seconds=seconds,
        nugget=report.nugget,
        clipped_sites=report.clipped_sites,
        unexplained=report.unexplained,
        shown_error=report.shown_error,
        damping=rho * done.share,
        removed_fraction=done.removed_fractions[name],
    )
