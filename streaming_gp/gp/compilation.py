"""A model's compiled functions, for one shape of data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpflow

from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import is_conjugate
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.predictor import Predictor
from streaming_gp.gp.process.covariances import latent_kernels
from streaming_gp.gp.state import Settings
from streaming_gp.gp.structure import Modules


class HyperparameterModules(gpflow.Module):
    """The modules whose parameters are hyperparameters, under GPflow's own path names."""

    def __init__(self, kernel: Any, mean_function: Any, likelihood: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.mean_function = mean_function
        self.likelihood = likelihood


@dataclass(frozen=True, eq=False)
class CompiledGP:
    """Fits and predictions of one model.

    :param local: The model.
    :param fitter: Its local fits.
    """

    local: LocalModel
    fitter: Fitter
    _predictors: dict[int, Predictor] = field(default_factory=dict)

    def predictor(self, num_draws: int) -> Predictor:
        """Its predictions, averaged over so many values of ε."""
        if num_draws not in self._predictors:
            self._predictors.clear()  # one holds a factorised process for each draw
            self._predictors[num_draws] = Predictor(self.local, num_draws)
        return self._predictors[num_draws]

    @property
    def parameters(self) -> ParameterVector:
        """The vector ε of trainable parameters."""
        return self.local.parameters

    @property
    def dims(self) -> tuple[int, int]:
        """D and P, the numbers of columns of X and Y."""
        return self.local.input_dim, self.local.output_dim

    def fits(self, parameters: ParameterVector, dims: tuple[int, int]) -> bool:
        """Whether it was compiled for these parameters and dimensions."""
        return self.dims == dims and self.parameters.views_the_same_as(parameters)


def compile_gp(
    modules: Modules,
    parameters: ParameterVector,
    settings: Settings,
    dims: tuple[int, int],
) -> CompiledGP:
    """Compiled functions of a model; each is traced when it is first called.

    :param modules: Kernel, mean function and likelihood.
    :param parameters: Their trainable parameters.
    :param settings: The strategies of the model.
    :param dims: D and P, the numbers of columns of X and Y.
    """
    kernel, likelihood = modules["kernel"], modules["likelihood"]
    num_latent = _num_latent(kernel, likelihood, settings.num_latent_gps, dims[1])
    shared = is_conjugate(likelihood) and len(latent_kernels(kernel)) == 1
    hyperparameters = settings.hyperparameters
    bound = settings.pseudo_points.local_bound(settings.bound, hyperparameters)
    gp = bound.gaussian_process(
        kernel, modules["mean_function"], num_latent, 1 if shared else num_latent
    )
    local = LocalModel(gp, likelihood, parameters, hyperparameters, *dims)
    fitter = Fitter(bound, local, settings.optimiser)
    return CompiledGP(local, fitter)


def _num_latent(kernel: Any, likelihood: Any, wanted: int | None, output_dim: int) -> int:
    if wanted is not None:
        return wanted
    if likelihood.latent_dim is not None:
        return int(likelihood.latent_dim)
    return int(gpflow.models.GPModel.calc_num_latent_gps(kernel, likelihood, output_dim))
