"""The local free energy of the factor that is kept of a batch, which is the same for all ε.

A fit may know a better q(f | ε) at every ε than one factor can hold. What is kept is
``q(f, ε) = q(ε) p(f | ε) Π t'(u') / Z'(ε)``, in the place of ``p(f | ε) Π t(u) / Z(ε)`` before; and
with all inner expectations over q(f | ε) its free energy is

    ``F = E_q(ε)[E log p(y | f, ε) + E log Π t(u) − log Z(ε) − E log Π t'(u') + log Z'(ε)]
    − KL(q(ε) ‖ q_cav(ε))``.

Pseudo-observations that stand on both sides leave it as it is.
"""

from __future__ import annotations

import numpy as np

from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.numerics import triangular


def kept_free_energy(
    local: LocalModel,
    before: Process,
    after: Process,
    data: tuple[np.ndarray, np.ndarray],
    seed: int,
) -> float:
    """F, in nats.

    :param before: Prior times all other factors, on the points that they were on.
    :param after: Prior times all factors.
    :param data: X [N, D] and Y [N, P].
    :param seed: The seed of the values of ε.
    """
    q, q_before = after.hyperparameters, before.hyperparameters
    assert q is not None
    assert q_before is not None
    X, Y = data
    mean = np.asarray(q.mean)
    draws = mean + local.hyperparameters.noise(len(mean), seed) @ np.transpose(q.scale)
    known, all_known = plain(before), plain(after)
    old = DenseProcess(PriorAt(local.prior, draws)).conditioned_on(known)
    new = old.conditioned_on(all_known)
    total = np.sum(local.expected(draws, X, Y, *new.predict(X))[0])
    total += new.log_normaliser - old.log_normaliser
    both = {id(one) for one in known} & {id(one) for one in all_known}
    for sign, members in ((1.0, known), (-1.0, all_known)):
        apart = (one for one in members if id(one) not in both)
        total += sign * sum(_expected_log(one, new) for one in apart)
    return float(total) / len(draws) - float(q.kl_divergence(q_before))


def _expected_log(one: PseudoObservations, process: DenseProcess) -> float:
    """``E log t(u)`` of pseudo-observations under a process, over all groups and values of ε."""
    V = process.project(one.Z)
    K = process.prior.covariance(one.Z)
    last = process.rows[-1].observed[0] if process.rows else ()
    starts = np.cumsum([0, *(len(one.Z) for one in last)])[:-1]
    for start, other in zip(starts, last, strict=True):
        if one.variables == other.variables:  # the points' own white noise is known as well
            V = V + one.nugget * _projected_noise(process, start, other)
            break
    covariance = K - np.swapaxes(V, 1, 2) @ V
    mean = process.mean(one.Z, V)
    total = 0.0
    for group, m, S in zip(process.prior.groups, mean, covariance, strict=True):
        R, s = one.square[group], one.pseudo_targets[group]
        trace = np.sum(R * (S @ R)) + one.nugget * np.sum(R**2)
        total -= 0.5 * float(np.sum((s - R.T @ m) ** 2) + m.shape[1] * trace)
    return total


def _projected_noise(process: DenseProcess, start: int, one: PseudoObservations) -> np.ndarray:
    """A projection on a member of the last row: the part of its white noise [S G, R, M]."""
    row = process.rows[-1]
    added = np.zeros((len(process.prior.groups), process.size, len(one.Z)))
    for group, L, out in zip(process.prior.groups, row.chol, added, strict=True):
        right = np.zeros((row.size, len(one.Z)))
        right[start : start + len(one.Z)] = one.square[group].T
        out[process.size - row.size :] = triangular.solve(L, right)
    return added
