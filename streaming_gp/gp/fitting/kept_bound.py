"""The local free energy of what is kept of a batch.

A fit may know a better q(f | ε) at every ε than one factor t(b) can hold. What is kept is
``q(f, ε) = q(ε) p̃(f | ε) t(b) / Z_b(ε)``, whose free energy is

    ``F = E_q(ε)[E_q(f|ε) log p(y | f, ε) − E_q(f|ε) log t(b) + log Z_b(ε)] − KL(q(ε) ‖ q_cav(ε))``.

With ``t(b) = exp(−½ ‖s − Rᵀb‖²)``, and L and w the block row that it adds to the process,
``log Z_b = −C log det L − ½ ‖w‖²`` and ``−2 E log t = ‖L⁻ᵀ w‖² + C (M − ‖L⁻¹‖²)``.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from streaming_gp import expfam
from streaming_gp.gp.bounds import sites as site_rules
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.fitting.problem import Data
from streaming_gp.gp.process.dense import DenseProcess
from streaming_gp.gp.process.graphs import spec
from streaming_gp.gp.process.observations import PseudoObservations
from streaming_gp.gp.process.prior import PriorAt
from streaming_gp.gp.process.process import Process, plain
from streaming_gp.numerics import triangular


class KeptBound:
    """Free energies of kept factors of one model.

    :param local: The model.
    """

    def __init__(self, local: LocalModel) -> None:
        self.local = local
        draws, inputs = spec(None, local.parameters.size), spec(None, local.input_dim)
        moments, observations = spec(None, None, local.gp.num_latent), spec(None, local.output_dim)
        self._expected = local.graphs.compiled(
            self._expected_samples, draws, inputs, moments, moments, observations
        )

    def free_energy(
        self,
        cavity: Process,
        kept: PseudoObservations,
        q: expfam.Gaussian,
        data: Data,
        seed: int,
    ) -> float:
        """F, in nats.

        :param cavity: Prior times all other factors.
        :param kept: What the batch's factor says of f.
        :param q: q(ε) with the batch's factor.
        :param data: X [N, D] and Y [N, P].
        :param seed: The seed of the values of ε.
        """
        draws = self.draws(q, seed)
        before = DenseProcess(PriorAt(self.local.prior, draws)).conditioned_on(plain(cavity))
        after = before.extended(kept)
        expected = self.expected_log_likelihood(after, data)
        gain = sum(map(evidence_less_expectation, after.rows[-1].chol, after.rows[-1].white))
        divergence = (
            0.0 if cavity.hyperparameters is None else q.kl_divergence(cavity.hyperparameters)
        )
        return (expected + gain) / len(draws) - float(divergence)

    def draws(self, q: expfam.Gaussian, seed: int) -> np.ndarray:
        """Values of ε [S, E]."""
        mean = np.asarray(q.mean)
        noise = self.local.hyperparameters.noise(len(mean), seed)
        return np.asarray(mean + noise @ np.transpose(q.scale))

    def expected_log_likelihood(self, process: DenseProcess, data: Data) -> float:
        """``Σ_n E log p(y_n | f_n, ε)``, summed over the values of ε of a process."""
        X, Y = data
        return float(np.sum(self._expected(process.prior.draws, X, *process.predict(X), Y)))

    def _expected_samples(
        self, draws: tf.Tensor, X: tf.Tensor, mean: tf.Tensor, variance: tf.Tensor, Y: tf.Tensor
    ) -> tf.Tensor:
        """``Σ_n E log p(y_n | f_n, ε)`` [S]."""

        def at(parts: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
            epsilon, m, v = parts
            with self.local.parameters.substituted(epsilon):
                return site_rules.expected_log_density(self.local.likelihood, X, m, v, Y)

        return tf.vectorized_map(at, (draws, mean, variance))


def evidence_less_expectation(L: np.ndarray, w: np.ndarray) -> float:
    """``log Z_b − E log t(b)`` of one group, for L [M, M] and w [M, C]."""
    M, C = w.shape
    inverse = triangular.solve(L, np.eye(M))
    log_evidence = -C * np.sum(np.log(L.diagonal())) - 0.5 * np.sum(w**2)
    error = triangular.solve(L, w, transposed=True)
    return float(log_evidence + 0.5 * (np.sum(error**2) + C * (M - np.sum(inverse**2))))
