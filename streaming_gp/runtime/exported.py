"""What a file holds of a trained Gaussian process: all that predictions need, as plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streaming_gp import serialization
from streaming_gp.runtime.description import Description

KIND = "predictor"
"""What such a file says that it is."""


@dataclass(frozen=True, eq=False)
class Draw:
    """The model at one ε.

    :param kernels: One kernel if all latent functions share it, else one for each.
    :param mean_function: The mean function.
    :param likelihood: The likelihood.
    :param chol: L [G, R, R], the lower factor of ``B = I + Rᵀ K R``.
    :param white: ``L⁻¹ (s − Rᵀ m(Z))`` [G, R, C].
    """

    kernels: tuple[Description, ...]
    mean_function: Description
    likelihood: Description
    chol: np.ndarray
    white: np.ndarray


@dataclass(frozen=True, eq=False)
class ExportedGP:
    """A process that is conditioned on pseudo-observations, at each of S values of ε.

    :param Z: The pseudo-inputs [R, D], R = n M.
    :param precision_factor: The n blocks [G, n, M, M] of the block diagonal R.
    :param draws: The model at each ε.
    """

    Z: np.ndarray
    precision_factor: np.ndarray
    draws: tuple[Draw, ...]


CLASSES: dict[str, type] = {cls.__name__: cls for cls in (Description, Draw, ExportedGP)}
"""What such a file may hold beside arrays and numbers."""


def write(path: serialization.PathLike, exported: ExportedGP) -> None:
    """Write it to a file, atomically; a file that was there is replaced.

    :raises OSError: if the file cannot be written; nothing has changed then.
    """
    serialization.write(path, KIND, exported, CLASSES)


def read(path: serialization.PathLike) -> ExportedGP:
    """What a file holds that :func:`write` wrote.

    :raises FileFormatError: if the file is missing, damaged, foreign, or of another version.
    """
    exported: ExportedGP = serialization.read(path, KIND, CLASSES, ExportedGP)
    return exported
