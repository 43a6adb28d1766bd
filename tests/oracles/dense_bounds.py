"""Bounds of a batch under what is known, in dense matrices, at the ε that a model holds."""

from dataclasses import replace
from types import SimpleNamespace

import gpflow
import numpy as np

from tests.oracles.reference import conditioned_process, expected_log_prior


def kernels_of(model):
    """The kernel of each group of columns."""
    separate = isinstance(model.kernel, gpflow.kernels.SeparateIndependent)
    return model.kernel.kernels if separate else [model.kernel]


def group_of(one, g):
    """Pseudo-observations of one group alone."""
    mine = slice(g, g + 1)
    return replace(
        one, precision_factor=one.precision_factor[mine], pseudo_targets=one.pseudo_targets[mine]
    )


def log_evidence(one, K, mean):
    """``log ∫ t(u) N(u; mean, K) du`` of one group."""
    R, s = one.precision_factor[0], one.pseudo_targets[0]
    B, residual = np.eye(len(R)) + R.T @ K @ R, s - R.T @ mean
    square = np.sum(residual * np.linalg.solve(B, residual))
    return -0.5 * (s.shape[1] * np.linalg.slogdet(B)[1] + square)


def evidence_of(model, known):
    """``log ∫ Π t(u) p(u | ε) du`` of each pseudo-observations by itself, of all groups."""
    value = 0.0
    for g, kernel in enumerate(kernels_of(model)):
        for one in known:
            K = kernel(one.Z).numpy() + one.nugget * np.eye(len(one.Z))
            mean = np.broadcast_to(model.mean_function(one.Z), one.pseudo_targets[g].shape)
            value += log_evidence(group_of(one, g), K, mean)
    return value


def frozen_points(model, known):
    """q(a) of the points of the first batch at the ε that the model holds: for each group, as
    N(intercept, scale scaleᵀ) of its one column.
    """
    found = []
    for g, kernel in enumerate(kernels_of(model)):
        R, s = known.precision_factor[g], known.pseudo_targets[g]
        prior = np.linalg.inv(kernel(known.Z).numpy() + known.nugget * np.eye(len(R)))
        covariance = np.linalg.inv(prior + R @ R.T)
        mean = covariance @ (prior @ np.broadcast_to(model.mean_function(known.Z), s.shape) + R @ s)
        scale = np.linalg.cholesky(0.5 * (covariance + covariance.T))
        found.append(
            SimpleNamespace(Z=known.Z, nugget=known.nugget, intercept=mean[None], scale=scale[None])
        )
    return found


def past_by_divergence(model, frozen):
    """``E_q(a)[log p(a | ε)]`` of all groups (PVI 2018, eq. 93), at the ε that the model holds."""
    each = zip(kernels_of(model), frozen, strict=True)
    return sum(expected_log_prior(kernel, model.mean_function, one) for kernel, one in each)


class UnderCavity:
    """New points b, a batch f and earlier points a of one group, given what is known of f."""

    def __init__(self, model, g, known, own, X, earlier):
        self.own, self.earlier = group_of(own, g), earlier and group_of(earlier, g)
        inputs = np.concatenate([own.Z, X, *([earlier.Z] if earlier else [])])
        kernel, C = kernels_of(model)[g], own.pseudo_targets.shape[2]
        if known:
            mine = [group_of(one, g) for one in known]
            mean, (S,) = conditioned_process(kernel, model.mean_function, mine, inputs)
        else:
            mean, S = model.mean_function(inputs), kernel(inputs).numpy()
        mean = np.broadcast_to(mean, (len(inputs), C))
        M, N = len(own.Z), len(X)
        b, self.f, self.a = slice(M), slice(M, M + N), slice(M + N, None)
        self.mean, self.S, self.m_b = mean, S, mean[b]
        self.K = S[b, b] + own.nugget * np.eye(M)
        self.J = np.linalg.solve(self.K, S[b])
        R, s = self.own.precision_factor[0], self.own.pseudo_targets[0]
        prior = np.linalg.inv(self.K)
        self.covariance = np.linalg.inv(prior + R @ R.T)
        self.off = self.covariance @ (prior @ self.m_b + R @ s) - self.m_b
        ratio = prior @ self.covariance
        self.kl = 0.5 * C * (np.trace(ratio) - M - np.linalg.slogdet(ratio)[1])
        self.kl += 0.5 * np.sum(self.off * (prior @ self.off))

    def moments(self, part):
        """Mean and covariance of a part under q."""
        J = self.J[:, part]
        spread = J.T @ (self.K - self.covariance) @ J
        return self.mean[part] + J.T @ self.off, self.S[part, part] - spread

    @property
    def left(self):
        """The variance of the batch that the points leave open."""
        J = self.J[:, self.f]
        return np.diag(self.S[self.f, self.f]) - np.sum(J * (self.K @ J), axis=0)

    def of_earlier(self):
        """``E_q log t(a) − log ∫ t(a) p(a) da``."""
        mean, covariance = self.moments(self.a)
        noise = self.earlier.nugget * np.eye(len(mean))
        R, s = self.earlier.precision_factor[0], self.earlier.pseudo_targets[0]
        trace = s.shape[1] * np.trace(R.T @ (covariance + noise) @ R)
        expected = -0.5 * (np.sum((s - R.T @ mean) ** 2) + trace)
        return expected - log_evidence(
            self.earlier, self.S[self.a, self.a] + noise, self.mean[self.a]
        )


def under_cavity(model, known, own, X, earlier=None):
    """Of each group."""
    number = own.precision_factor.shape[0]
    each = kernels_of(model)
    assert number == len(each)
    return [UnderCavity(model, g, known, own, X, earlier) for g in range(number)]


def sparse_bound(model, known, own, data, earlier=None):
    """``E_q[log p(y | f)] − KL(q(b) ‖ p̃(b))`` where ``q(b) ∝ p̃(b) t(b)`` and t is ``own``.

    Points b may take over what ``earlier`` ones say (Bui et al. 2017a): their factor is data, too.
    """
    groups = under_cavity(model, known, own, data[0], earlier)
    moments = [one.moments(one.f) for one in groups]
    mean = np.concatenate([mean for mean, _ in moments], axis=1)
    variance = np.concatenate(
        [np.repeat(np.diag(S)[:, None], m.shape[1], axis=1) for m, S in moments], axis=1
    )
    value = np.sum(model.likelihood.variational_expectations(data[0], mean, variance, data[1]))
    value -= sum(one.kl for one in groups)
    return value + (sum(one.of_earlier() for one in groups) if earlier else 0.0)
