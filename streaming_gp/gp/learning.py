"""How a streaming model learns: one step of the loop for each batch, or for a round of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, wraps
from time import perf_counter
from typing import Any, TypeVar, cast

import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.adoption import refuse_foreign, refuse_sizes
from streaming_gp.gp.compilation import CompiledGP, unchanged
from streaming_gp.gp.federated import FederatedGP
from streaming_gp.gp.fitting.fitted import Fitted
from streaming_gp.gp.fitting.optimiser import Callback, reporter
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.fitting.solver import Batch
from streaming_gp.gp.forgetting import next_time
from streaming_gp.gp.ledger_operations import batch_name
from streaming_gp.gp.modules import refuse_indices
from streaming_gp.gp.process.process import Process, PseudoPointFactor
from streaming_gp.gp.seeds import fingerprint, seed_of
from streaming_gp.gp.strategies.protocol import check_allowed
from streaming_gp.gp.turns import one_at_a_time
from streaming_gp.gp.update_info import UpdateInfo
from streaming_gp.gp.when_to_learn import Decision, decision, only_class_with
from streaming_gp.inputs import require_flag, require_fraction
from streaming_gp.numerics.threads import blas_threads_for
from streaming_gp.validation import as_data

Data = tuple[Any, Any]
Checked = Mapping[str, tuple[np.ndarray, np.ndarray]]
Done = pvi.StepResult[Process, Fitted]
Step = TypeVar("Step", bound=Callable[..., Any])


def _with_as_many_threads_as_points_need(step: Step) -> Step:
    @wraps(step)
    def limited(self: LearningGP, *arguments: Any, **options: Any) -> Any:
        with blas_threads_for(self.posterior_process.num_pseudo_points):
            return step(self, *arguments, **options)

    return cast(Step, limited)


class LearningGP(FederatedGP):
    """A ledger of Gaussian-process factors that learns."""

    @one_at_a_time
    def update(
        self,
        data: Data,
        callback: Callback | None = None,
        batch_id: str | None = None,
        learn: bool | None = None,
        time: float | None = None,
    ) -> UpdateInfo:
        """Take in one batch. If anything raises, the model is exactly as it was.

        :param data: X [N, D] and Y [N, P], NumPy arrays or tensors of any real dtype.
        :param callback: Called with a :class:`Progress` after every optimiser iteration.
        :param batch_id: The name of the batch's factor; by default ``"batch-0"`` and so on.
        :param learn: Whether hyperparameters and places of points are learned. If not, the batch
            is absorbed at the present q(ε), which stays as it is, by linear algebra alone. By
            default the model's learning schedule decides, and nothing is learned while all labels
            are of one class: they say that f is far from zero, and nothing of how it varies.
        :param time: The time of the batch, in any unit and from any origin, where factors fade with
            time; by default one later than the batch before.
        :returns: what was done.
        :raises InvalidDataError: if the batch is not finite, empty, of the wrong shape or dtype, or
            outside the likelihood's support, or its name is taken, or time runs backwards.
        :raises NumericalError: if a covariance stays indefinite.
        """
        batch_id = batch_name(f"batch-{self._now.num_updates}" if batch_id is None else batch_id)
        if batch_id in self.factors:
            raise InvalidDataError(f"there is a factor {batch_id!r} already; revisit() refines it")
        if learn is not None:
            require_flag("learn", learn)
        time = next_time(self._now.time, time)
        return self._step({batch_id: data}, 1.0, callback, learn=learn, time=time)[batch_id]

    @one_at_a_time
    def revisit(
        self, batch_id: str, data: Data, callback: Callback | None = None, damping: float = 1.0
    ) -> UpdateInfo:
        """A further pass over a kept batch: its factor is fitted anew under its present cavity.

        Its pseudo-points start where they are; with ``damping`` below 1 they stay there.

        :param batch_id: The name of its factor.
        :param data: The same data again, X [N, D] and Y [N, P].
        :param callback: Called with a :class:`Progress` after every optimiser iteration.
        :param damping: ρ in (0, 1]: the new factor is ``t_old^(1−ρ) t_new^ρ``.
        :returns: what was done.
        :raises InvalidDataError: as :meth:`update`, or if there is no such factor.
        :raises ImproperError: if q(ε) without this batch is no distribution, and the policy refuses
            that.
        """
        batch_id = self._factor_name(batch_id)
        require_fraction("damping", damping)
        return self._step({batch_id: data}, damping, callback)[batch_id]

    @one_at_a_time
    def synchronous_round(
        self, shards: Mapping[str, Data], damping: float | None = None
    ) -> dict[str, UpdateInfo]:
        """Every shard refines its factor under the present ledger; then all are replaced at once.

        Shards that are new to the ledger get a factor. Pseudo-points stay where the first round put
        them, and hyperparameters must not be a point, as shards would differ in it.

        :param shards: ``{batch_id: (X, Y)}``.
        :param damping: ρ in (0, 1], by default one over the number of shards.
        :returns: what was done, by shard.
        :raises InvalidDataError: as :meth:`update`, or if the strategies allow no rounds.
        :raises ImproperError: as :meth:`revisit`.
        """
        check_allowed(self.settings.pseudo_points, "rounds")
        self.settings.hyperparameters.check_round()
        if not shards:
            raise InvalidDataError("a synchronous round needs at least one shard, got none")
        rho = 1.0 / len(shards) if damping is None else damping
        require_fraction("damping", rho)
        named = {batch_name(name): data for name, data in shards.items()}
        return self._step(named, rho, None, is_round=True)

    @one_at_a_time
    def adopt(self, ledger: GPLedger) -> None:
        """Hold this ledger from now on, for instance that of a server whose clients learned it.

        Trainable parameters take the mean of its q(ε).

        :param ledger: Prior and factors, as :class:`~streaming_gp.pvi.Server` holds them.
        :raises InvalidDataError: if its factors are none of this model.
        :raises ImproperError: if its posterior is no distribution; nothing has changed then.
        """
        refuse_foreign(ledger, self._now.ledger.prior)
        compiled = self._compile(*self._dims_of(ledger.posterior))
        gp, input_dim = compiled.local.gp, compiled.local.input_dim
        sizes = input_dim, gp.num_groups, gp.num_latent // gp.num_groups
        refuse_sizes(ledger.posterior, sizes)
        num_new = len(set(ledger.factors) - set(self.factors))
        point = self._point_estimate(ledger, compiled)
        self._commit(compiled, ledger, point, num_new, only_class=None)

    @one_at_a_time
    def fit_factor(
        self, data: Data, cavity: Process, own: PseudoPointFactor | None, hold: bool = True
    ) -> Fitted:
        """Fit data under a cavity that someone else holds; the model itself learns nothing.

        :param data: X [N, D] and Y [N, P].
        :param cavity: Prior times all other factors.
        :param own: The factor that these data have now, if they have one.
        :param hold: Whether its points stay.
        :returns: their new factor and what was done.
        :raises InvalidDataError: if factors of the model's strategies rest on one another.
        """
        strategy = self.settings.pseudo_points
        check_allowed(strategy, "clients")
        self.settings.hyperparameters.check_round()
        checked = as_data(data, self.likelihood, *self._now.dims)
        compiled = self._compiled_to_fit(checked[0].shape[1], checked[1].shape[1])
        seed = seed_of(self.settings.seed, fingerprint(checked[0]))
        batch = Batch("", compiled.outputs.data(checked), seed, hold=hold)
        ledger = pvi.Ledger(cavity, {} if own is None else {batch.name: own})
        return strategy.fit(compiled.fitter, ledger, pvi.Question(cavity, None), batch)

    # ---- one step ----

    @_with_as_many_threads_as_points_need
    def _step(
        self,
        shards: Mapping[str, Data],
        rho: float,
        callback: Callback | None,
        is_round: bool = False,
        learn: bool | None = True,
        time: float | None = None,
    ) -> dict[str, UpdateInfo]:
        """Forget, make room, one step of the loop for all shards, merge, commit.

        :param learn: Whether hyperparameters are learned; None where the schedule decides.
        :param time: The time of the next batch of the stream; None where there is no order.
        """
        start = perf_counter()
        checked = self._checked(shards)
        decided = self._decision(learn, checked)
        unchanged(self.modules, self.parameter_vector, self._compiled)
        compiled = self._compile(*_dims(checked))
        strategy = self.settings.pseudo_points
        new = [name for name in shards if name not in self.factors]
        is_next = time is not None
        ledger = self._remembered(time)
        if is_next and decided.learn:
            ledger = self.settings.hyperparameters.forget(ledger)
        own = {name: compiled.outputs.data(data) for name, data in checked.items()}
        if (decided.learn or decided.is_held) and not ledger.factors:
            compiled.fitter.watch_first(ledger.posterior, own.values())
        fits = {
            name: _fit(
                partial(strategy.fit, compiled.fitter, ledger),
                self._batch(name, data, is_next, rho, callback, decided.learn),
            )
            for name, data in own.items()
        }
        done = pvi.step(ledger, fits, pvi.Damping(rho, len(fits)), self.settings.policy)
        point = self._point_after(done, compiled, is_round)
        kept = list(shards) if is_round else []
        after = strategy.tidy(compiled.fitter, done.ledger, point, kept)
        changes: dict[str, Any] = {"only_class": decided.only_class}
        if any(report.iterations for report in done.reports.values()):
            changes["shift"] = self._shift_to(point, compiled, done.ledger)
        if is_next:
            changes["time"] = time
        self._commit(compiled, after, point, len(new), **changes)
        seconds = perf_counter() - start
        return {name: UpdateInfo.of(name, done, rho, seconds) for name in shards}

    def _decision(self, learn: bool | None, checked: Checked) -> Decision:
        labels = (Y for _, Y in checked.values())
        only_class = only_class_with(labels, self._now, self.likelihood)
        return decision(learn, self._now, only_class, self.settings, self.parameter_vector)

    def _point_after(self, done: Done, compiled: CompiledGP, is_round: bool) -> np.ndarray:
        """The ε that the model has from now on: of all shards together, or the one fit's own."""
        if is_round:
            return self._point_estimate(done.ledger, compiled)
        (point,) = (report.epsilon for report in done.reports.values())
        return point

    def _remembered(self, time: float | None) -> GPLedger:
        """What is left of the ledger for the next batch, if it comes at a time."""
        if time is None:
            return self._now.ledger
        elapsed = 1.0 if self._now.time is None else time - self._now.time
        return self.settings.forgetting.forget(self._now.ledger, elapsed)

    def _shift_to(self, point: np.ndarray, compiled: CompiledGP, ledger: GPLedger) -> float:
        """How far the point estimate of ε moves, in units of its width."""
        q, parameters = ledger.posterior.hyperparameters, compiled.parameters
        before = self._point_estimate(self._now.ledger, compiled)
        width = parameters.unit_log_widths() if q is None else np.sqrt(np.asarray(q.variance))
        return float(np.sqrt(np.mean(((point - before) / width) ** 2))) if len(point) else 0.0

    def _checked(self, shards: Mapping[str, Data]) -> Checked:
        checked: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        dims = self._now.dims
        for name, data in shards.items():
            X, Y = checked[name] = as_data(data, self.likelihood, *dims)
            refuse_indices(self.kernel, X)
            dims = X.shape[1], Y.shape[1]
        return checked

    def _batch(
        self,
        name: str,
        data: Data,
        streams: bool,
        rho: float,
        callback: Callback | None,
        learn: bool,
    ) -> Batch:
        """A batch with random numbers of its own.

        :param streams: Whether it is the next one of the stream, and not one of many visits.
        """
        number = self._now.num_updates if streams else fingerprint(data[0])
        seed = seed_of(self.settings.seed, number)
        report = reporter(callback, name, self.settings.optimiser.most_iterations)
        return Batch(name, data, seed, report, rho < 1.0, learn)


def _fit(fit: Callable[[pvi.Question[Process], Batch], Fitted], batch: Batch) -> pvi.Fit[Fitted]:
    """The fit of a batch as :func:`pvi.step` asks for it."""

    def answer(question: pvi.Question[Process]) -> tuple[GPLedger | None, Any, Fitted]:
        fitted = fit(question, batch)
        return fitted.ledger, fitted.factor, fitted

    return answer


def _dims(checked: Checked) -> tuple[int, int]:
    X, Y = next(iter(checked.values()))
    return X.shape[1], Y.shape[1]
