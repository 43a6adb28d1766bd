"""The user's object: a GPflow model that takes its data in batches."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gpflow
import numpy as np

from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import passes, persistence
from streaming_gp.gp.covariances import latent_kernels
from streaming_gp.gp.factor import PseudoPointFactor
from streaming_gp.gp.hyperparameters import (
    HyperparameterStrategy,
    PointHyperparameters,
    VariationalHyperparameters,
)
from streaming_gp.gp.journal import Journal
from streaming_gp.gp.local_update import FitReport
from streaming_gp.gp.optimiser import Callback, LocalOptimiser, Progress, Report
from streaming_gp.gp.parameters import ParameterVector
from streaming_gp.gp.predicting import Machinery, PredictingGP
from streaming_gp.gp.process import Process
from streaming_gp.gp.pseudo_points import (
    PrivatePseudoPoints,
    PseudoPointStrategy,
    is_positive_integer,
)
from streaming_gp.gp.sites import check_alpha
from streaming_gp.serialization import PathLike
from streaming_gp.validation import as_data


@dataclass(frozen=True)
class UpdateInfo:
    """What an update did.

    :param batch_id: the key of the new factor in ``model.factors``.
    :param free_energy: local free energy of the batch, in nats; these add up to an estimate of the
        log evidence of the stream.
    :param num_pseudo_points: points of this batch.
    :param iterations: optimiser iterations.
    :param seconds: wall time.
    :param nugget: variance of the pseudo-points' white noise, in squared units of f.
    :param clipped_sites: sites whose negative precision was cut off (likelihoods that are not
        log-concave), at the last step.
    """

    batch_id: str
    free_energy: float
    num_pseudo_points: int
    iterations: int
    seconds: float
    nugget: float
    clipped_sites: int


class StreamingGP(PredictingGP):
    """A sparse Gaussian process that learns from a stream of batches.

    Each :meth:`update` is one client pass of Partitioned Variational Inference: the batch gets a
    factor of private pseudo-points, fitted under the cavity that all earlier batches left, and no
    earlier data are needed (PVI 2018, section 6.2).

    :param kernel: any GPflow kernel with independent latent functions.
    :param likelihood: any GPflow likelihood.
    :param mean_function: any GPflow mean function; zero by default.
    :param pseudo_points: how many points a batch gets and where, and what becomes of earlier ones.
    :param hyperparameters: what is learned about kernel, mean function and likelihood parameters.
    :param num_latent_gps: latent functions; by default what kernel, likelihood and first batch say.
    :param optimiser: how the local free energy is maximised.
    :param num_prediction_samples: values of ε over which predictions are averaged; even.
    :param seed: of all random numbers.
    :param alpha: of power EP, in [0, 1], for Gaussian noise; 0, the default, is the variational
        bound (Bui, Yan & Turner 2017).
    :param journal: an empty or missing folder in which every completed change of the model is
        recorded before it is made; :meth:`resume` continues from there.
    """

    def __init__(
        self,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.Function | None = None,
        pseudo_points: PseudoPointStrategy | None = None,
        hyperparameters: HyperparameterStrategy | None = None,
        num_latent_gps: int | None = None,
        optimiser: LocalOptimiser | None = None,
        num_prediction_samples: int = 16,
        seed: int = 0,
        alpha: float = 0.0,
        journal: PathLike | None = None,
    ) -> None:
        latent_kernels(kernel)
        check_alpha(alpha, likelihood)
        known = num_latent_gps or getattr(kernel, "num_latent_gps", None) or likelihood.latent_dim
        if num_prediction_samples < 2 or num_prediction_samples % 2:
            raise InvalidDataError(
                f"num_prediction_samples must be even and positive, got {num_prediction_samples}"
            )
        super().__init__(kernel, likelihood, mean_function, known or 1)
        self.pseudo_points = pseudo_points or PrivatePseudoPoints(10)
        self.hyperparameters = hyperparameters or VariationalHyperparameters()
        if self.pseudo_points.freezes and (alpha > 0.0 or self.hyperparameters.remembers):
            raise InvalidDataError(
                "conditional pseudo-points take neither power EP nor remember=True, got "
                f"alpha={alpha} and {self.hyperparameters}"
            )
        self.optimiser = optimiser or LocalOptimiser()
        self.num_prediction_samples = num_prediction_samples
        self.seed = seed
        self.alpha = alpha
        self._wanted_latent_gps = num_latent_gps
        self._num_updates = 0
        self._dims: tuple[int | None, int | None] = (None, None)
        self._machinery: Machinery | None = None
        self._ledger = pvi.Ledger(Process((), self.hyperparameters.prior(self._parameters())))
        self._journal: Journal | None = None
        if journal is not None:
            self._journal = Journal.begun(journal, persistence.state_of(self))

    # ---- the ledger ----

    @property
    def factors(self) -> Mapping[str, PseudoPointFactor]:
        """The factor of every batch, in order of arrival (read-only)."""
        return self._ledger.factors

    @property
    def num_updates(self) -> int:
        """Batches learned from so far; a resumed stream goes on with the next one."""
        return self._num_updates

    def update(
        self, data: tuple[Any, Any], callback: Callback | None = None, batch_id: str | None = None
    ) -> UpdateInfo:
        """Learn from one batch. If anything raises, the model is exactly as it was.

        :param data: X [N, D] and Y [N, P], NumPy arrays or tensors of any real dtype.
        :param callback: called with a :class:`Progress` after every optimiser iteration.
        :param batch_id: name of the batch's factor; by default ``"batch-0"`` and so on.
        :returns: what was done.
        :raises InvalidDataError: if the batch is not finite, empty, of the wrong shape or dtype, or
            outside the likelihood's support, or its name is taken.
        :raises NumericalError: if a covariance stays indefinite.
        """
        batch_id = f"batch-{self._num_updates}" if batch_id is None else batch_id
        self._refuse_folded(batch_id)
        if batch_id in self.factors:
            raise InvalidDataError(f"there is a factor {batch_id!r} already; revisit() refines it")
        return self._visit(batch_id, data, callback, 1.0)

    def revisit(
        self,
        batch_id: str,
        data: tuple[Any, Any],
        callback: Callback | None = None,
        damping: float = 1.0,
    ) -> UpdateInfo:
        """A further pass over a kept batch: its factor is fitted anew under its present cavity.

        Its pseudo-points start where they are; with ``damping`` below 1 they stay there.

        :param batch_id: key of its factor.
        :param data: the same data again, X [N, D] and Y [N, P].
        :param damping: ρ in (0, 1]: the new factor is ``t_old^(1−ρ) t_new^ρ``.
        :returns: what was done.
        :raises InvalidDataError: as :meth:`update`, or if there is no such factor.
        :raises ImproperError: if q(ε) without this batch is no distribution.
        """
        self._require_factor(batch_id)
        return self._visit(batch_id, data, callback, damping)

    def synchronous_round(
        self, shards: Mapping[str, tuple[Any, Any]], damping: float | None = None
    ) -> dict[str, UpdateInfo]:
        """Every shard refines its factor under the present ledger; then all are replaced at once.

        Shards that are new to the ledger get a factor. Private pseudo-points stay where the first
        round put them, and hyperparameters must not be a point, as clients would differ in it.

        :param shards: ``{batch_id: (X, Y)}``.
        :param damping: ρ in (0, 1], by default one over the number of shards.
        :raises InvalidDataError: as :meth:`update`.
        """
        self._refuse_rounds()
        if not shards:
            raise InvalidDataError("a synchronous round needs at least one shard, got none")
        rho = 1.0 / len(shards) if damping is None else damping
        checked: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        dims = self._dims
        for name, data in shards.items():
            self._refuse_folded(name)
            X, Y = checked[name] = as_data(data, self.likelihood, *dims)
            dims = X.shape[1], Y.shape[1]
        machinery = self._prepare(X.shape[1], Y.shape[1])
        visits = {
            name: passes.Visit(name, data, self._next_seed(), lambda *_: None, rho)
            for name, data in checked.items()
        }
        ledger, reports = passes.synchronous_round(machinery.update, self._ledger, visits)
        epsilon = self._point_estimate(ledger, machinery.epsilon)
        self._commit(machinery, ledger, epsilon, new_batches=len(set(shards) - set(self.factors)))
        return {name: _info(name, reports[name], ledger, 0.0) for name in shards}

    def remove(self, batch_id: str) -> None:
        """Forget a batch: divide its factor out.

        At fixed hyperparameters, and where no later batch was fitted under this factor, the model
        is exactly the one that never saw the batch. Later factors keep what they learned under it;
        :meth:`revisit` them to be rid of that too.

        :raises InvalidDataError: if there is no such factor.
        :raises ImproperError: if q(ε) without it is no distribution.
        """
        self._require_factor(batch_id)
        machinery = self._prepared()
        ledger = self._ledger.without(batch_id)
        self._commit(machinery, ledger, self._point_estimate(ledger, machinery.epsilon))

    def compress(self, number: int) -> float:
        """Carry all factors over to one on at most ``number`` points; q(ε) stays as it is.

        :param number: M, at least 1.
        :returns: the nats by which the log evidence estimate falls.
        :raises InvalidDataError: if ``number`` is not a positive integer.
        """
        if not is_positive_integer(number):
            raise InvalidDataError(f"number of points must be a positive integer, got {number!r}")
        if self.pseudo_points.freezes:
            raise InvalidDataError("conditional pseudo-points cannot be compressed")
        if self.posterior_process.num_pseudo_points <= number:
            return 0.0
        machinery = self._prepared()
        epsilon = self._point_estimate(self._ledger, machinery.epsilon)
        names = list(self.factors)
        ledger, loss = passes.folded(machinery.update, self._ledger, names, number, epsilon)
        self._commit(machinery, ledger, epsilon)
        return loss

    def _visit(
        self, batch_id: str, data: tuple[Any, Any], callback: Callback | None, damping: float
    ) -> UpdateInfo:
        start = time.perf_counter()
        X, Y = as_data(data, self.likelihood, *self._dims)
        machinery = self._prepare(X.shape[1], Y.shape[1])
        report = _reporter(callback, batch_id, self.optimiser.max_iterations)
        visit = passes.Visit(batch_id, (X, Y), self._next_seed(), report, damping)
        is_new = batch_id not in self.factors
        ledger, epsilon = self._ledger, self._point_estimate(self._ledger, machinery.epsilon)
        if is_new:
            ledger = passes.with_room(machinery.update, ledger, epsilon)
            ledger = passes.faded(machinery.update, ledger)
        ledger, found = passes.client_pass(machinery.update, ledger, visit)
        ledger = passes.tidied(machinery.update, ledger)
        self._commit(machinery, ledger, found.epsilon, new_batches=int(is_new))
        return _info(batch_id, found, ledger, time.perf_counter() - start)

    def _require_factor(self, name: str) -> None:
        """The named factor is there, is one batch's, and no other rests on it."""
        self._refuse_folded(name)
        if name not in self.factors:
            raise InvalidDataError(
                f"no factor {name!r} in the ledger: it has {list(self.factors)} "
                f"(batches under {passes.FOLDED!r} are kept together, not one by one)"
            )
        newest = list(self.factors)[-1]
        if self.pseudo_points.freezes and name != newest:
            raise InvalidDataError(
                f"with conditional pseudo-points only the newest factor {newest!r} can be "
                f"revisited or removed, as later ones rest on earlier ones; got {name!r}"
            )

    def _refuse_folded(self, name: str) -> None:
        if name == passes.FOLDED:
            raise InvalidDataError(f"{name!r} holds several batches, not one")

    def _refuse_rounds(self) -> None:
        points = self.pseudo_points
        private = isinstance(points, PrivatePseudoPoints) and points.budget is None
        if not private or isinstance(self.hyperparameters, PointHyperparameters):
            raise InvalidDataError(
                "synchronous rounds need private pseudo-points without a budget, and fixed or "
                f"variational hyperparameters; got {points} and {self.hyperparameters}"
            )

    def _point_estimate(self, ledger: pvi.Ledger[Process], epsilon: ParameterVector) -> np.ndarray:
        """Mean of q(ε), or the point that the parameters hold."""
        q = ledger.posterior.hyperparameters
        return epsilon.value() if q is None else np.asarray(q.mean)

    def _commit(
        self,
        machinery: Machinery,
        ledger: pvi.Ledger[Process],
        epsilon: Any,
        new_batches: int = 0,
    ) -> None:
        num_updates = self._num_updates + new_batches
        if self._journal is not None:  # on disk first: if this fails, nothing has changed
            self._journal.append(
                persistence.state_after(
                    self, ledger, machinery.epsilon, epsilon, num_updates, machinery.dims
                )
            )
        machinery.epsilon.assign(epsilon)
        self._machinery, self._dims = machinery, machinery.dims
        self.num_latent_gps = machinery.gp.num_latent
        self._ledger = ledger
        self._num_updates = num_updates

    def _next_seed(self) -> int:
        return int(np.random.SeedSequence([self.seed, self._num_updates]).generate_state(1)[0])

    def __deepcopy__(self, memo: dict[int, Any]) -> StreamingGP:
        """A model that continues the stream on its own, without a journal.

        The ledger never changes, so both have it; functions are compiled anew.
        """
        clone = type(self).__new__(type(self))
        memo[id(self)] = clone
        shared = {"_ledger": self._ledger, "_machinery": None, "_journal": None}
        for name, value in vars(self).items():
            clone.__dict__[name] = shared[name] if name in shared else copy.deepcopy(value, memo)
        return clone

    # ---- files ----

    def save(self, path: PathLike) -> None:
        """Write the whole state of the stream to a file, atomically; no data are in it.

        :raises OSError: if the file cannot be written; a file that was there stays as it was.
        """
        persistence.save(self, path)

    @staticmethod
    def load(
        path: PathLike,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.Function | None = None,
    ) -> StreamingGP:
        """The model that a file holds; it continues bit for bit as the saved one would.

        :param path: written by :meth:`save`.
        :param kernel: of the same structure as the saved model's; its parameters get their values
            from the file. So for likelihood and mean function.
        :raises FileFormatError: if the file is missing, damaged, foreign, or of a later version.
        :raises InvalidDataError: if the structure differs; names where.
        """
        return persistence.model_from(persistence.load(path), kernel, likelihood, mean_function)

    @staticmethod
    def resume(
        journal: PathLike,
        kernel: gpflow.kernels.Kernel,
        likelihood: gpflow.likelihoods.Likelihood,
        mean_function: gpflow.functions.Function | None = None,
    ) -> StreamingGP:
        """The model at the last completed change in its journal, which it continues to write.

        :param journal: the folder that was given to the model as ``journal``.
        :param kernel: as in :meth:`load`; so for likelihood and mean function.
        :raises FileFormatError: if there is no journal, or an entry is missing or damaged.
        :raises InvalidDataError: if the structure differs; names where.
        """
        written, state = Journal.resumed(journal)
        model = persistence.model_from(state, kernel, likelihood, mean_function)
        model._journal = written
        return model

    def print_summary(self) -> None:
        """Print GPflow's table of parameters, and a table of the ledger."""
        gpflow.utilities.print_summary(self)
        points = self.posterior_process.num_pseudo_points
        print(f"prior × {len(self.factors)} factors, {points} points")
        for batch_id, factor in self.factors.items():
            print(f"  {batch_id:<12} {len(factor.Z):>5} pseudo-points")


def _info(
    batch_id: str, found: FitReport, ledger: pvi.Ledger[Process], seconds: float
) -> UpdateInfo:
    factor = ledger.factors.get(batch_id)
    return UpdateInfo(
        batch_id=batch_id,
        free_energy=found.free_energy,
        num_pseudo_points=0 if factor is None else len(factor.Z),
        iterations=found.iterations,
        seconds=seconds,
        nugget=found.nugget,
        clipped_sites=found.clipped_sites,
    )


def _reporter(callback: Callback | None, batch_id: str, max_iterations: int) -> Report:
    def report(iteration: int, free_energy: float) -> None:
        if callback is not None:
            callback(Progress(batch_id, iteration, max_iterations, free_energy))

    return report
