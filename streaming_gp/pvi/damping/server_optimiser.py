"""Federated averaging with an optimiser at the server.

Clients answer by ``AveragingUpdate``: ``t_k = (q_k / prior)^s_k`` with q_k narrow about its weights
θ_k, and shares s_k of the data. From the ledger alone the server reads

- ``w_k = Λ_k / Σ_j Λ_j``, a client's share among those that answered: s_k over their sum
- ``θ_k``, the mean of ``prior × t_k^(1/s_k)``, with ``s_k = Λ_k / (Λ − Λ_0)`` its share among all,
  where Λ is the posterior's precision with the new factors and Λ_0 the prior's
- ``Δ = Σ_k w_k (θ_k − θ)``, which takes the place of a gradient at the posterior's mean θ

The optimiser says which step the mean takes. Widths are those that clients answered with, and what
lies between the step and Δ is shared out by w_k, as if all clients had moved their weights by the
same vector: the posterior stays prior times factors. Begin with ``Server.warm_start``, as a fit
that starts elsewhere than at θ tells nothing about Δ.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.pvi.damping.rule import Factors, Memory, require_mean_field
from streaming_gp.pvi.ledger import Ledger

Natural = tuple[np.ndarray, np.ndarray]
"""Precision times mean [D], and precision [D]."""


class ServerOptimiser(abc.ABC):
    """A damping rule whose step of the mean is an optimiser's."""

    @abc.abstractmethod
    def step(
        self, changes: np.ndarray, num_clients: int, memory: Memory
    ) -> tuple[np.ndarray, Memory]:
        """The server's step [D], and what it remembers.

        :param changes: ``w_k (θ_k − θ)`` of each client that answered [K, D]; they sum to Δ.
        :param num_clients: The number M of clients that have a factor: all, after a warm start.
        :param memory: What the last step gave back; empty at first.
        """

    def applied(
        self,
        ledger: Ledger[Any],
        proposals: Mapping[str, Any],
        share: float,
        progress: float,
        memory: Memory,
    ) -> tuple[Factors, Memory]:
        """As ``DampingRule`` says.

        :raises InvalidDataError: if the posterior is not a mean-field Gaussian.
        """
        require_mean_field(self, ledger)
        mean = np.asarray(ledger.posterior.mean)
        total = natural_with(ledger, proposals)
        changes = _changes(ledger, proposals, total, mean)
        step, memory = self.step(changes, len(ledger.factors.keys() | proposals), memory)
        return moved(proposals, total, mean + share * step), memory


def natural_with(ledger: Ledger[Any], proposals: Mapping[str, Any]) -> Natural:
    """The product of prior and factors with these proposals in it, proper or not."""
    factors = {**ledger.factors, **proposals}
    parts = [ledger.prior.natural, *_naturals(factors.values())]
    h, precision = (np.sum(each, axis=0) for each in zip(*parts, strict=True))
    return h, precision


def moved(proposals: Mapping[str, Any], total: Natural, mean: np.ndarray) -> Factors:
    """The factors with which the posterior has this mean, by one shift of the weights of all.

    :param proposals: The factors of the clients that answered.
    :param total: The product of prior and all factors, these among them.
    :param mean: The posterior mean that is wanted [D].
    """
    h, precision = total
    shift = (precision * mean - h) / sum(own for _, own in _naturals(proposals.values()))
    return {
        name: Factor(MeanFieldNormal, (own_h + own * shift, own))
        for name, (own_h, own) in zip(proposals, _naturals(proposals.values()), strict=True)
    }


def _changes(
    ledger: Ledger[Any], proposals: Mapping[str, Any], total: Natural, mean: np.ndarray
) -> np.ndarray:
    """``w_k (θ_k − θ) = ((Λ − Λ_0) h_k + Λ_k (h_0 − Λ θ)) / (Λ Σ_j Λ_j)``: [K, D].

    In this form no client's precision is divided by, whatever it answered.
    """
    h_0, prior = ledger.prior.natural
    _, all_precision = total
    naturals = _naturals(proposals.values())
    h, precision = (np.stack(each) for each in zip(*naturals, strict=True))
    changes: np.ndarray = (all_precision - prior) * h + precision * (h_0 - all_precision * mean)
    return changes / (all_precision * precision.sum(axis=0))


def _naturals(factors: Iterable[Any]) -> list[Natural]:
    return [factor.natural for factor in factors]
