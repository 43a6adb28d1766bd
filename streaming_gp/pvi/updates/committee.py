"""Rules of methods that PVI is compared with: they answer once, or without uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import KL, MeanFieldNormal
from streaming_gp.inputs import require_not_negative, typed
from streaming_gp.pvi.guards import NO_LIMITS, Checks
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule
from streaming_gp.pvi.updates.variational import VariationalUpdate


@typed
@dataclass(frozen=True)
class SplitPriorUpdate:
    """A member of a Bayesian committee machine with the prior split (Tresp 2000; PVI 2018, 7.1).

    Each client fits under ``prior^share``, so that the posterior is the product of all q, which are
    not damped. The committee with the same prior for all needs no rule of its own: it is one
    synchronous round with damping 1.

    :param rule: The rule that fits.
    :param share: The client's share of the prior; the shares of all clients sum to one.
    """

    rule: UpdateRule
    share: float
    server_damping: ClassVar[float] = 1.0

    def __call__(self, task: LocalTask) -> LocalResult:
        if task.own is not None:
            raise InvalidDataError("a committee machine answers once, before there are factors")
        return self.rule(replace(task, own=task.posterior.as_factor() ** (1.0 - self.share)))


@typed
@dataclass(frozen=True)
class AveragingUpdate:
    """A member of federated averaging (McMahan et al. 2017): maximum likelihood, then a mean.

    The answer is ``(q / prior)^share`` with q of a small fixed width about the weights, so that
    prior times factors is the logarithmic opinion pool ``Π q^share``, whose mean is the weighted
    mean of the weights. Shares sum to one, and answers are not damped. The rule sets the server's
    limits on answers aside, as its own are surer than any posterior.

    With ``proximal`` it is a member of FedProx (Li et al. 2020): the fit is held back by
    ``N μ ‖θ − θ_server‖² / 2``, the divergence from ``N(θ_server, 1 / (N μ))``. N is the number
    of the client's rows, as log-likelihoods are sums over them.

    :param share: The client's share of the data, usually N_k / N.
    :param rule: The rule of the local fit; its divergence is left out.
    :param width: The standard deviation of q.
    :param proximal: The strength μ of FedProx's term, for one row; none if 0.
    """

    share: float
    rule: VariationalUpdate
    width: float = 1e-3
    proximal: float = 0.0
    checks: ClassVar[Checks] = NO_LIMITS
    server_damping: ClassVar[float] = 1.0
    wants_prior: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_not_negative("proximal", self.proximal)

    def __call__(self, task: LocalTask) -> LocalResult:
        at_server = mean_of(task)  # refuses other families
        start, rule = replace(task, start=self._narrow(task.start)), self.rule
        if self.proximal > 0.0:
            held = np.full_like(at_server, task.num_data * self.proximal)
            near = MeanFieldNormal(held * at_server, held)
            start, rule = replace(start, posterior=near, own=None), replace(rule, divergence=KL())
        else:
            rule = replace(rule, divergence=KL(weight=0.0))
        q, _, steps = rule.fit(start)
        factor = self._narrow(q).as_factor() / task.prior.as_factor()
        return LocalResult(factor**self.share, steps=steps)

    def _narrow(self, q: Any) -> MeanFieldNormal:
        mean = np.asarray(q.mean)
        return MeanFieldNormal.from_mean_variance(mean, np.full_like(mean, self.width**2))


def mean_of(task: LocalTask) -> Any:
    """The posterior mean of a task [D].

    :raises InvalidDataError: if the posterior is no mean-field Gaussian.
    """
    if not isinstance(task.posterior, MeanFieldNormal):
        family = type(task.posterior).__name__
        raise InvalidDataError(f"wanted a mean-field Gaussian posterior, got a {family}")
    return task.posterior.mean
