"""A model's compiled functions, for one shape of data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gpflow

from streaming_gp.gp.bounds.problem import LocalModel
from streaming_gp.gp.bounds.sites import has_one_noise, is_conjugate
from streaming_gp.gp.fitting.fit import Fitter
from streaming_gp.gp.hyperparameter_terms import HyperparameterTerms
from streaming_gp.gp.hyperparameters import ParameterVector
from streaming_gp.gp.hyperparameters.traced import TracedParameterVector
from streaming_gp.gp.modules import refuse_misfits
from streaming_gp.gp.outputs import Outputs, outputs_of
from streaming_gp.gp.prediction import PosteriorCache
from streaming_gp.gp.process.prior import latent_kernels
from streaming_gp.gp.state import Settings
from streaming_gp.gp.structure import Modules, refuse_change, structure
from streaming_gp.numerics.threads import keep_freed_memory


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

    :param local: The model of the functions that are fitted.
    :param fitter: Its local fits.
    :param dims: D and P, the numbers of columns of X and Y.
    :param outputs: How the outputs are made of these functions.
    :param structure: What kernel, mean function and likelihood were, in words.
    """

    local: LocalModel
    fitter: Fitter
    dims: tuple[int, int]
    outputs: Outputs
    structure: dict[str, str]

    @cached_property
    def posteriors(self) -> PosteriorCache:
        """The newest posterior of the model."""
        return PosteriorCache(self.local, self.outputs.posterior)

    @cached_property
    def terms(self) -> HyperparameterTerms:
        """The free energy by a point ε."""
        return HyperparameterTerms(self.local)

    @property
    def num_latent_gps(self) -> int:
        """The number L of latent functions."""
        return self.outputs.num_latent_gps or self.local.gp.num_latent

    @property
    def parameters(self) -> ParameterVector:
        """The vector ε of trainable parameters."""
        return self.local.parameters

    def fits(self, parameters: ParameterVector, dims: tuple[int, int]) -> bool:
        """Whether it was compiled for these parameters and dimensions."""
        return self.dims == dims and self.parameters.views_the_same_as(parameters)


def compile_gp(
    modules: Modules,
    settings: Settings,
    dims: tuple[int, int],
) -> CompiledGP:
    """Compiled functions of a model; each is traced when it is first called.

    :param modules: Kernel, mean function and likelihood.
    :param settings: The strategies of the model.
    :param dims: D and P, the numbers of columns of X and Y.
    """
    keep_freed_memory()
    outputs = outputs_of(modules["kernel"], modules["likelihood"], settings.num_latent_gps)
    vector = TracedParameterVector(HyperparameterModules(**modules))
    own = outputs.modules({name: getattr(vector.traced, name) for name in modules})
    kernel, likelihood = own["kernel"], own["likelihood"]
    num_functions = outputs.num_functions(own, dims[1])
    one_noise = is_conjugate(likelihood) and has_one_noise(likelihood)
    shared = one_noise and len(latent_kernels(kernel)) == 1
    refuse_misfits(kernel, own["mean_function"], outputs.dims(*dims)[0], num_functions)
    hyperparameters = settings.hyperparameters
    bound = settings.pseudo_points.local_bound(settings.bound, hyperparameters)
    gp = bound.gaussian_process(
        kernel, own["mean_function"], num_functions, 1 if shared else num_functions
    )
    local = LocalModel(gp, likelihood, vector, hyperparameters, *outputs.dims(*dims))
    fitter = Fitter(bound, local, settings.optimiser)
    return CompiledGP(local, fitter, dims, outputs, structure(modules))


def unchanged(
    modules: Modules, parameters: ParameterVector, compiled: CompiledGP | None
) -> dict[str, str]:
    """What the modules of a model are, in words: the same as when it last learned.

    :param compiled: Its compiled functions, if it has some; made for other parameters they do not
        count, as the next change makes them anew.
    :raises InvalidDataError: if it is not the same; names the first difference.
    """
    found = structure(modules)
    if compiled is not None and compiled.fits(parameters, compiled.dims):
        refuse_change(compiled.structure, found)
    return found
