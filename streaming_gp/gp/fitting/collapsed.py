"""Which bounds of which models have a closed form, with sites or without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from streaming_gp.gp.bounds import Exact, PowerEP, Variational
from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.protocol import LocalBound
from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.collapsed.site_functions import SiteFunctions
from streaming_gp.gp.process.tensors import GaussianProcess

LossAndGradient = Callable[..., tuple[float, np.ndarray]]


def collapsed_objective(bound: LocalBound, local: LocalModel) -> LossAndGradient | None:
    """The negative free energy and its gradient in closed form; None where none is known.

    Bounds are known by their type, not by inheritance: one of your own may differ in anything.
    """
    if not (is_conjugate(local.likelihood) and _is_plain(local)):
        return None
    if type(bound) is Exact:
        return partial(local.collapsed[False].loss_and_gradient, 0.0)
    alpha = power_of(bound)
    return None if alpha is None else partial(local.collapsed[True].loss_and_gradient, alpha)


def site_functions(bound: LocalBound, local: LocalModel) -> SiteFunctions | None:
    """The same at given sites, for noise that is not Gaussian; None where none is known."""
    if is_conjugate(local.likelihood) or not _is_plain(local):
        return None
    if type(bound) is Exact:
        return local.at_sites[False]
    return local.at_sites[True] if type(bound) is Variational else None


def _is_plain(local: LocalModel) -> bool:
    """Whether the process rests on nothing, and nothing is remembered by eq. 93, which has none."""
    remembers = local.hyperparameters.memory(lambda: 0.0, lambda: 1.0) != 0.0
    return type(local.gp) is GaussianProcess and not remembers


def power_of(bound: LocalBound) -> float | None:
    """α of a bound on a few points that is an energy of power EP; None of any other."""
    if type(bound) is Variational:
        return 0.0
    return bound.alpha if type(bound) is PowerEP else None
