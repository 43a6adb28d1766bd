"""Clients with parameters of their own beside the shared ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streaming_gp import serialization
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor, MeanFieldNormal, Normal
from streaming_gp.inputs import typed
from streaming_gp.pvi.model import Data, Model, require
from streaming_gp.pvi.task import LocalResult, LocalTask, RuleAround, UpdateRule, factor_of
from streaming_gp.pvi.updates.snep import SNEPUpdate

KIND = "what a client keeps to itself"


class PersonalModel:
    """A model whose parameters are shared, but for some that every client has to itself.

    With θ shared and z_k the client's own, client k has of θ the likelihood
    ``∫ p(y_k | θ, z_k) p(z_k) dz_k``: partitioned variational inference with local latent
    variables.
    Server, checks, files and messages are of θ alone. Clients answer by :class:`PersonalUpdate`.

    :param model: The model of all D parameters; its prior is Gaussian, with θ and z independent.
    :param personal: Which of them are personal: their numbers, or [D] true and false. Of a
        network's last layer ``net.layer_of_weights == net.layer_of_weights.max()``.
    :raises InvalidDataError: if none or all of them are, or the prior is not of that kind.
    """

    def __init__(self, model: Model, personal: Sequence[int] | np.ndarray) -> None:
        prior = require(model, Model, "PersonalModel").prior()
        if not isinstance(prior, (MeanFieldNormal, Normal)):
            raise InvalidDataError(
                "wanted Gaussians with a mean field or a full covariance, got a "
                f"{type(prior).__name__}"
            )
        size = len(prior.precision_mean)
        is_personal = np.zeros(size, bool)
        try:
            is_personal[np.asarray(personal)] = True
        except (IndexError, ValueError) as error:
            raise InvalidDataError(f"personal must be among {size} parameters: {error}") from error
        if is_personal.all() or not is_personal.any():
            raise InvalidDataError(f"wanted some of {size} parameters, got {personal!r}")
        self.model, self.size = model, size
        self.shared, self.personal = np.flatnonzero(~is_personal), np.flatnonzero(is_personal)
        if prior.precision.ndim == 2 and np.any(prior.precision[np.ix_(~is_personal, is_personal)]):
            raise InvalidDataError(
                "shared and personal parameters depend on one another in the prior"
            )

    def prior(self) -> Any:
        """p(θ)."""
        return marginal(self.model.prior(), self.shared)

    def initial(self, seed: int) -> Any:
        """The model's own start, of θ."""
        return marginal(self.model.initial(seed), self.shared)

    def as_data(self, X: Any, Y: Any) -> Data:
        """As the model's own."""
        return self.model.as_data(X, Y)

    def joined(self, posterior: Any, kept: Any) -> Any:
        """The posterior of one client over all D parameters: ``q(θ) q(z | θ)``.

        :param posterior: q(θ), as the server has it.
        :param kept: The client's newest posterior of all D, as :meth:`PersonalUpdate.kept` has it.
        :raises InvalidDataError: if they are not of these forms.
        """
        _require_form(posterior, self.prior())
        _require_form(kept, self.model.prior())
        news = posterior.as_factor() / marginal(kept, self.shared).as_factor()
        return kept.times([embedded(news, self.shared, self.size)]).as_arrays()


@typed
@dataclass(frozen=True)
class PersonalUpdate(RuleAround):
    """Fit shared and personal parameters together; answer with the factor of the shared ones.

    The client's cavity is that of θ times the prior of its own z. The rule fits q(θ, z) under it,
    and the answer is ``∫ q(θ, z) dz`` over the cavity of θ. What is personal is no part of any
    message. It is fitted anew at each visit, from where the last one left it, if that is kept.

    :param rule: The rule that fits both.
    :param folder: Where a client keeps q(θ, z), in a file of its name at its own place. Without it
        every visit fits z from where the model starts, and nothing is kept to predict with.
    :param seed: The seed of where z starts.
    :raises InvalidDataError: if the rule goes on from a factor, as ``SNEPUpdate`` does; and when it
        is asked, if the model is no ``PersonalModel``, or the file is of another one.
    """

    rule: UpdateRule
    folder: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rule, SNEPUpdate):
            raise InvalidDataError(
                "SNEPUpdate goes on from its factor of all parameters, of which a personal client "
                "keeps the shared part: wanted a rule that fits anew, such as "
                "pvi.VariationalUpdate()"
            )

    @property
    def keeps_state(self) -> bool:
        """Whether it has a folder."""
        return self.folder is not None

    def __call__(self, task: LocalTask) -> LocalResult:
        """Answer; what is personal stays."""
        model = task.model
        if not isinstance(model, PersonalModel):
            raise InvalidDataError(
                f"PersonalUpdate is for a PersonalModel, got a {type(model).__name__}"
            )
        joint = self._joint(task, model)
        result = self.rule(joint)
        q = (joint.cavity * result.factor).normalised().as_arrays()
        if self.folder is not None:
            path = serialization.file_of(task.client_id, self.folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            serialization.write(path, KIND, q, serialization.registered_classes())
        shared = marginal(q, model.shared)
        return replace(result, factor=factor_of(shared, task.cavity, result.free_energy))

    def kept(self, client_id: str) -> Any:
        """The client's newest q(θ, z) of all D parameters; None before its first visit.

        :raises FileFormatError: if the file is damaged or foreign.
        """
        path = None if self.folder is None else serialization.file_of(client_id, self.folder)
        if path is None or not path.exists():
            return None
        return serialization.read(path, KIND, serialization.registered_classes())

    def _joint(self, task: LocalTask, model: PersonalModel) -> LocalTask:
        """The question as one of all D parameters."""
        own = marginal(model.model.prior(), model.personal)
        newest = self.kept(task.client_id)
        if newest is not None:
            _require_form(newest, model.model.prior())
        z = marginal(model.model.initial(self.seed) if newest is None else newest, model.personal)

        def joined(shared: Any, personal: Any) -> Any:
            both = embedded(shared.as_factor(), model.shared, model.size)
            both = both * embedded(personal.as_factor(), model.personal, model.size)
            return both.normalised().as_arrays()

        return replace(
            task,
            model=model.model,
            posterior=joined(task.posterior, own),
            own=None if task.own is None else embedded(task.own, model.shared, model.size),
            start=joined(task.start, z),
            given_prior=joined(task.prior, own),
        )


def _require_form(q: Any, prior: Any) -> None:
    form = getattr(q, "form", type(q).__name__)
    if form != prior.form:
        raise InvalidDataError(f"wanted as posterior a {prior.form}, got a {form}")


def marginal(q: Any, coordinates: np.ndarray) -> Any:
    """q of these coordinates [B] alone."""
    if isinstance(q, MeanFieldNormal):
        return MeanFieldNormal(*(np.asarray(eta)[coordinates] for eta in q.natural))
    covariance = np.asarray(q.covariance)[np.ix_(coordinates, coordinates)]
    mean = np.asarray(q.mean)[coordinates]
    return Normal.from_mean_covariance(mean, covariance).as_arrays()


def embedded(factor: Factor, coordinates: np.ndarray, size: int) -> Factor:
    """A factor of these coordinates [B] as one of all D, that does not depend on the others."""
    by_mean, precision = (np.asarray(eta) for eta in factor.natural)
    all_by_mean = np.zeros(size, by_mean.dtype)
    all_by_mean[coordinates] = by_mean
    all_precision = np.zeros([size] * precision.ndim, precision.dtype)
    all_precision[np.ix_(*[coordinates] * precision.ndim)] = precision
    return Factor(factor.family, (all_by_mean, all_precision), float(factor.log_scale))
