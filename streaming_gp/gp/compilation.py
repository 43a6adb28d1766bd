"""Functions that are compiled once for a model and one shape of data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import gpflow
import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.federated import HyperparameterTerms
from streaming_gp.gp.fit.fit import Fitter
from streaming_gp.gp.fit.local_model import LocalModel
from streaming_gp.gp.fit.sites import has_one_noise, is_conjugate
from streaming_gp.gp.hyperparameters import ParameterVector, TracedParameterVector
from streaming_gp.gp.outputs import Outputs, outputs_of
from streaming_gp.gp.prediction import PosteriorCache
from streaming_gp.gp.process.prior import latent_kernels
from streaming_gp.gp.process.process import Process
from streaming_gp.gp.state import Settings, State
from streaming_gp.gp.structure import Modules, refuse_change, refuse_misfits, structure
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
    :param num_groups: The number of groups of these functions, unless each is one of its own.
    """

    local: LocalModel
    fitter: Fitter
    dims: tuple[int, int]
    outputs: Outputs
    structure: dict[str, str]
    num_groups: int

    @cached_property
    def posteriors(self) -> PosteriorCache:
        """The newest posterior of the model."""
        return PosteriorCache(self.local, self.outputs.posterior, self.fitter.data)

    @cached_property
    def terms(self) -> HyperparameterTerms:
        """The free energy by a point ε."""
        return HyperparameterTerms(self.local)

    @property
    def parameters(self) -> ParameterVector:
        """The vector ε of trainable parameters."""
        return self.local.parameters

    def fits(
        self, parameters: ParameterVector, dims: tuple[int, int], apart: bool | None = None
    ) -> bool:
        """Whether it was compiled for these parameters and dimensions.

        :param apart: As of :func:`compile_gp`; None where that does not matter.
        """
        gp = self.local.gp
        wanted = gp.num_latent if apart else self.num_groups
        fits = apart is None or gp.num_groups == wanted
        return fits and self.dims == dims and self.parameters.views_the_same_as(parameters)


def compile_gp(
    modules: Modules,
    settings: Settings,
    dims: tuple[int, int],
    apart: bool = False,
) -> CompiledGP:
    """Compiled functions of a model; each is traced when it is first called.

    :param modules: Kernel, mean function and likelihood.
    :param settings: The strategies of the model.
    :param dims: D and P, the numbers of columns of X and Y.
    :param apart: Whether each latent function is a group of its own, so that entries of Y may be
        missing.
    """
    keep_freed_memory()
    outputs = outputs_of(modules["kernel"], modules["likelihood"], settings.num_latent_gps)
    vector = TracedParameterVector(HyperparameterModules(**modules))
    own = outputs.modules({name: getattr(vector.traced, name) for name in modules})
    kernel, likelihood = own["kernel"], own["likelihood"]
    num_functions = outputs.num_functions(own, dims[1])
    one_noise = is_conjugate(likelihood) and has_one_noise(likelihood)
    num_groups = 1 if one_noise and len(latent_kernels(kernel)) == 1 else num_functions
    refuse_misfits(kernel, own["mean_function"], outputs.dims(*dims)[0], num_functions)
    hyperparameters = settings.hyperparameters
    bound = settings.pseudo_points.local_bound(settings.bound, hyperparameters).of(likelihood)
    gp = bound.gaussian_process(
        kernel,
        own["mean_function"],
        num_functions,
        num_functions if apart else num_groups,
        likelihood if is_conjugate(likelihood) else None,
    )
    local = LocalModel(gp, likelihood, vector, hyperparameters, *outputs.dims(*dims))
    fitter = Fitter(bound, local, settings.optimiser, settings.conditioning)
    return CompiledGP(local, fitter, dims, outputs, structure(modules), num_groups)


def parameters_of(modules: Modules) -> ParameterVector:
    """The vector ε of the trainable parameters of kernel, mean function and likelihood."""
    return ParameterVector(HyperparameterModules(**modules))


class Functions:
    """The compiled functions of one model: they are made when the first one is wanted.

    :param modules: Kernel, mean function and likelihood.
    :param compiled: Those that there are, which serve as long as they fit.
    """

    def __init__(self, modules: Modules, compiled: CompiledGP | None) -> None:
        self.modules = modules
        self.compiled = compiled

    def of(
        self,
        state: State,
        dims: tuple[int | None, int | None] | None = None,
        apart: bool = False,
    ) -> CompiledGP:
        """Those for these D and P, or for data of the shape that the model has learned from.

        :param apart: Whether latent functions are groups of their own, even if factors do not say.
        :raises InvalidDataError: if q(ε) is of other parameters than are trainable now.
        """
        input_dim, output_dim = state.dims if dims is None else dims
        assert input_dim is not None
        assert output_dim is not None
        parameters, sizes = parameters_of(self.modules), (input_dim, output_dim)
        apart = apart or state.is_apart
        if self.compiled is None or not self.compiled.fits(parameters, sizes, apart):
            q = state.ledger.posterior.hyperparameters
            if q is not None and np.size(q.mean) != parameters.size:
                raise InvalidDataError(
                    f"q(ε) covers {np.size(q.mean)} parameter values but {parameters.size} "
                    "are trainable now; set what is trainable before the model is made"
                )
            self.compiled = compile_gp(self.modules, state.settings, sizes, apart)
        return self.compiled

    def dims_of(self, state: State, process: Process) -> tuple[int, int]:
        """D and P of the data that a process speaks of."""
        input_dim, output_dim = state.dims
        kernel, likelihood = self.modules["kernel"], self.modules["likelihood"]
        extra = outputs_of(kernel, likelihood, state.settings.num_latent_gps).index_columns
        columns = chain((one.Z.shape[1] for one in process.pseudo_observations), [1 + extra])
        output_dim = output_dim or default_output_dim(self.modules, state)
        return input_dim or next(columns) - extra, output_dim

    def unchanged_structure(self) -> dict[str, str]:
        """Kernel, mean function and likelihood in words: the same as when the model last learned.

        Functions that were compiled for other parameters do not count, as the next change makes
        them again.

        :raises InvalidDataError: if it is not the same; names the first difference.
        """
        now = structure(self.modules)
        compiled = self.compiled
        if compiled is not None and compiled.fits(parameters_of(self.modules), compiled.dims):
            refuse_change(compiled.structure, now)
        return now


def num_latent_gps(modules: Modules, state: State) -> int:
    """The number L of latent functions; a guess before data say it."""
    likelihood, output_dim = modules["likelihood"], state.dims[1]
    outputs = outputs_of(modules["kernel"], likelihood, state.settings.num_latent_gps)
    if outputs.num_latent_gps is not None:
        return outputs.num_latent_gps
    if output_dim is None:
        return int(likelihood.latent_dim or 1)
    return outputs.num_functions(modules, output_dim)


def default_output_dim(modules: Modules, state: State) -> int:
    """P of the data that a model expects before it has seen any."""
    switched = isinstance(modules["likelihood"], gpflow.likelihoods.SwitchedLikelihood)
    return num_latent_gps(modules, state) + int(switched)  # its last column says which likelihood
