"""Which points of a process matter least."""

from __future__ import annotations

import numpy as np


def losses(Q: np.ndarray, gamma: np.ndarray, alpha: np.ndarray, W: np.ndarray) -> np.ndarray:
    """What the posterior loses without each point: ``KL(p(u) ‖ p(u_r) p₀(u_j | u_r))``, in nats.

    With ``p₀(u_j | u_r)`` of precision Q_jj and ``p(u_j | u_r)`` of precision Q_jj + W_jj this is
    ``½ Σ_c [log(1 + W_jj / Q_jj) + (α_jc² − Γ_jj) / Q_jj]``.

    :param Q: The diagonal of Q [M].
    :param gamma: The diagonal of Γ [M].
    :param alpha: α or its negative [C, M].
    :param W: The diagonal of W [M].
    """
    C = len(alpha)
    nats = C * np.log1p(W / Q) + (np.einsum("cm,cm->m", alpha, alpha) - C * gamma) / Q
    return 0.5 * nats
