"""The local free energy of what is kept of a batch on shared points.

What is kept is ``q(f, ε) = q(ε) p(f | ε) t'(b) / Z'(ε)``, with one t' on the new points b for all
batches, in the place of ``p(f | ε) t(a) / Z(ε)`` on the points a before. Its free energy is

    ``F = E_q(ε)[E log p(y | f, ε) + E log t(a) − log Z(ε) − E log t'(b) + log Z'(ε)]
    − KL(q(ε) ‖ q_cav(ε))``

with all inner expectations over ``q(f | ε)``.
"""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.fitting.kept_bound import KeptBound, evidence_less_expectation
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.numerics import triangular


def bound_at(
    kept_bound: KeptBound, cavity: Process, after: Process, draws: np.ndarray, data: Data
) -> float:
    """F averaged over values of ε, without the divergence of q(ε), in nats.

    :param cavity: Prior times all other factors, on the points that they were on.
    :param after: Prior times all factors, on the new points.
    :param draws: The values of ε [S, E].
    :param data: X [N, D] and Y [N, P].
    """
    prior = PriorAt(kept_bound.local.prior, draws)
    earlier = plain(cavity)
    new = DenseProcess(prior).conditioned_on(plain(after))
    (row,) = new.rows
    total = kept_bound.expected_log_likelihood(new, data)
    total += sum(map(evidence_less_expectation, row.chol, row.white))
    total += sum(_expected_log(one, new) for one in earlier)
    total -= DenseProcess(prior).conditioned_on(earlier).log_normaliser
    return total / len(draws)


def _expected_log(one: PseudoObservations, process: DenseProcess) -> float:
    """``E log t(u)`` of pseudo-observations of other points under a process, over all groups."""
    V = process.project(one.Z)
    if one.variables == process.members[0].variables:
        V = V + one.nugget * _projected_noise(process)
    covariance = process.prior.covariance(one.Z) - np.swapaxes(V, 1, 2) @ V
    mean = process.mean(one.Z, V)
    total = 0.0
    for group, m, S in zip(process.prior.groups, mean, covariance, strict=True):
        R, s = one.precision_factor[group], one.pseudo_targets[group]
        trace = np.sum(R * (S @ R)) + one.nugget * np.sum(R**2)
        total -= 0.5 * float(np.sum((s - R.T @ m) ** 2) + m.shape[1] * trace)
    return total


def _projected_noise(process: DenseProcess) -> np.ndarray:
    """``L⁻¹ Rᵀ`` [S G, R, R]: what the points' own white noise adds to a projection on them."""
    (row,) = process.rows
    (member,) = row.members
    factors = (member.precision_factor[group].T for group in process.prior.groups)
    return np.stack([triangular.solve(L, R) for L, R in zip(row.chol, factors, strict=True)])
