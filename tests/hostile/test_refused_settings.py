"""Settings that make no sense: each is refused when it is made, and named with its range."""

import gpflow
import numpy as np
import pytest

import streaming_gp as sgp
from streaming_gp import bnn, expfam, linear, losses, pvi, samplers
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import PowerEP
from streaming_gp.pvi import privacy

NAN, INF = float("nan"), float("inf")
FREE = privacy.Budget(INF)
FIXED_POINT, VARIATIONAL, LBFGS = pvi.FixedPointUpdate, pvi.VariationalUpdate, pvi.LBFGS()
GRADIENTS, CHANGES = privacy.PrivateGradients, privacy.PrivateChanges
PRIVATE = sgp.PrivatePseudoPoints
HYPERPARAMETERS = sgp.VariationalHyperparameters
AVERAGING = pvi.AveragingUpdate(0.5, VARIATIONAL(), proximal=1.0)
STEPS = "steps must be positive and damping"
FRESH = "fresh must lie between 0"
TWO_BATCHES = "budget must hold at least twice"
MEMORY = "remember must be true, false, 'evidence' or 'divergence', got"


def summed(**options):
    return privacy.SummedChanges(VARIATIONAL(), record="", **{"sites": 4, **options})


GAUSSIAN_PROCESSES = [
    *((PRIVATE, {"number": n}, "pseudo-points") for n in (0, -3, 2.5, "some", True)),
    (PRIVATE, {"number": "all", "budget": 0}, "budget must be positive|got 0"),
    (PRIVATE, {"number": 10, "budget": 15}, TWO_BATCHES),
    (PRIVATE, {"number": "auto", "budget": 50}, TWO_BATCHES),
    (sgp.SharedPseudoPoints, {"number": 5, "fresh": 6}, FRESH),
    (sgp.SharedPseudoPoints, {"number": 5, "fresh": 0, "optimise_locations": False}, FRESH),
    (sgp.IndependentPseudoPoints, {"number": 0}, "positive integer"),
    (sgp.IndependentPseudoPoints, {"number": 5, "growth": 0}, "positive integer"),
    (sgp.LocalOptimiser, {"max_iterations": 0}, "max_iterations"),
    (sgp.LocalOptimiser, {"rounds": 0}, "rounds"),
    (sgp.LocalOptimiser, {"site_damping": 0.0}, "site_damping"),
    (sgp.LocalOptimiser, {"site_damping": 2.0}, "site_damping"),
    (sgp.LocalOptimiser, {"epsilon_iterations": -1}, "epsilon_iterations"),
    *((HYPERPARAMETERS, {"forgetting_factor": f}, "forgetting_factor") for f in (0.0, 1.1, NAN)),
    (HYPERPARAMETERS, {"num_samples": 3}, "num_samples"),
    (HYPERPARAMETERS, {"num_samples": 0}, "num_samples"),
    (HYPERPARAMETERS, {"prior_log_scale": 0.0}, "prior_log_scale"),
    (sgp.PointHyperparameters, {"max_log_decrease": -1.0}, "max_log_decrease"),
    *(
        (sgp.PointHyperparameters, {"remember": memory}, MEMORY)
        for memory in ("both", "Evidence", 1, None, np.ones(2), np.str_("evidence"))
    ),
    *((PowerEP, {"alpha": alpha}, "alpha of power EP must lie in") for alpha in (0.0, 1.5, -0.5)),
    (sgp.EveryUpdate, {"every": 0}, "must be"),
    (sgp.UntilSettled, {"shift": 0.0}, "must be"),
    (sgp.UntilSettled, {"every": -1}, "must be"),
    (sgp.UntilSettled, {"growth": 0.0}, "must be"),
    (sgp.Fading, {"power": 0.0}, "power must lie in"),
    (sgp.SlidingWindow, {"num_batches": 0}, "num_batches must be positive"),
    (sgp.GPUpdate, {"keep_points": "no"}, "keep_points must be"),
]
UPDATES = [
    *((rule, {"batch_size": 0}, "batch_size must be positive, got 0")
      for rule in (FIXED_POINT, pvi.StochasticNaturalGradientUpdate)),
    (FIXED_POINT, {"steps": 0}, STEPS),
    *((FIXED_POINT, {"damping": rho}, STEPS) for rho in (0.0, 1.5, -0.5)),
    (VARIATIONAL, {"epochs": 0}, "epochs and batch_size must be positive"),
    (VARIATIONAL, {"batch_size": 0}, "epochs and batch_size must be positive"),
    (VARIATIONAL, {"optimiser": LBFGS}, "batch_size must be None"),
    (VARIATIONAL, {"batch_size": None, "optimiser": LBFGS, "stateful": True}, "must be False"),
    (VARIATIONAL, {"stateful": 1.5}, "stateful"),
    (VARIATIONAL, {"batch_size": None, "optimiser": LBFGS, "stopping": pvi.Plateau()},
     "stopping must be None"),
    (VARIATIONAL, {"optimiser": pvi.VariationalOnlineNewton(), "divergence": expfam.Renyi(0.5)},
     "KL divergence only"),
    (pvi.Plateau, {"patience": 0}, "patience"),
    (pvi.Plateau, {"tolerance": -1.0}, "tolerance"),
    (pvi.SGD, {"learning_rate": 0.0}, "learning_rate"),
    (pvi.SGD, {"momentum": 1.0}, "momentum"),
    (pvi.PowerEPUpdate, {"alpha": 0.0}, "alpha"),
    (pvi.PowerEPUpdate, {"sweeps": 0}, "sweeps"),
    (pvi.PowerEPUpdate, {"damping": 1.5}, "damping"),
    (pvi.StochasticEPUpdate, {"alpha": -1.0}, "alpha"),
    (pvi.StochasticEPUpdate, {"steps": 0}, "steps"),
    (pvi.StochasticEPUpdate, {"damping": 0.0}, "damping"),
    (pvi.TiedUpdate, {"rule": pvi.PowerEPUpdate(), "pieces": 0}, "pieces"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "beta": 0.0}, "beta"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "learning_rate": 1.0}, "learning_rate"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "sync": 0}, "sync"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "outer": 0}, "outer"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "min_variance": -1.0}, "min_variance"),
    (samplers.AdaptiveSGLD, {"step_size": 0.0}, "step_size"),
    (samplers.AdaptiveSGLD, {"decay": 1.0}, "decay"),
    (samplers.AdaptiveSGLD, {"batch_size": 0}, "batch_size"),
    (samplers.NUTS, {"num_samples": 0}, "num_samples"),
    (pvi.DownpourUpdate, {"sync": 0}, "sync and batch_size"),
    (pvi.ElasticUpdate, {"batch_size": 0}, "sync and batch_size"),
    (pvi.ElasticUpdate, {"moving_rate": 0.0}, "moving_rate"),
    (pvi.ElasticUpdate, {"width": -1.0}, "moving_rate"),
    (pvi.ElasticUpdate, {"share": 1.5}, "moving_rate and share"),
    (losses.BetaLoss, {"beta": 0.0}, "beta"),
    (losses.GammaLoss, {"gamma": -1.0}, "gamma"),
    (losses.GeneralisedCrossEntropy, {"q": 1.5}, "q"),
    (expfam.BetaDivergence, {"beta": 1.0}, "beta"),
]  # fmt: skip
SERVERS = [
    (pvi.Serial, {"latency": -1}, "latency"),
    (pvi.Synchronous, {"fraction": 0.0}, "fraction"),
    *((pvi.Arrivals, {"groups": groups}, "wanted groups") for groups in ([], [[]])),
    (pvi.OpinionPool, {"weights": {"c0": -1.0}}, "must be positive, got -1"),
    (pvi.TrimmedMean, {"fraction": 0.5}, r"fraction must lie in \[0, 0.5\), got 0.5"),
    (pvi.TrimmedMean, {"fraction": "0.1"}, "TrimmedMean.fraction must be a number"),
    (pvi.BoundedInfluence, {"max_shift": 0.0}, "max_shift must be positive"),
    (pvi.Agreement, {"max_disagreement": -1.0}, "max_disagreement must be positive"),
    (pvi.FedAvg, {"learning_rate": 0.0}, "learning_rate must be positive"),
    (pvi.FedAvg, {"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
    (pvi.FedAdagrad, {"adaptivity": 0.0}, "adaptivity must be positive"),
    (pvi.FedAdam, {"decay": 1.0}, "decay must lie"),
    (pvi.FedYogi, {"decay": -0.1}, "decay must lie"),
    (pvi.MaskedAveraging, {"threshold": 1.1}, "threshold must lie"),
    (pvi.ServerAdam, {"learning_rate": 0.0}, "learning_rate"),
    (pvi.ServerAdam, {"beta2": 1.0}, "beta2"),
    (pvi.LikelihoodParameters, {"learning_rate": 0.0}, "learning_rate"),
    (pvi.LikelihoodParameters, {"learning_rate": 1.5}, "learning_rate"),
    (pvi.LikelihoodParameters, {"max_step": 0.0}, "max_step"),
]
MODELS = [
    (linear.BayesianLinearRegression, {"num_inputs": 3, "noise_variance": -1.0}, "noise_variance"),
    (linear.logistic_regression, {"num_inputs": 0}, "num_inputs"),
    (bnn.MultiHeadBNN, {"sizes": [2, 2], "num_heads": 0,
                        "likelihood": gpflow.likelihoods.Softmax(2)}, "num_heads"),
    *((pvi.PersonalModel, {"model": linear.BayesianLinearRegression(2), "personal": personal}, "")
      for personal in ([], [0, 1], [5], [True, True])),
    (pvi.PersonalModel, {"model": linear.BayesianLinearRegression(2, family=expfam.IsotropicNormal),
                         "personal": [0]}, "IsotropicNormal"),
]  # fmt: skip
PRIVACY = [
    (privacy.Budget, {"epsilon": 0.0}, "epsilon"),
    (privacy.Budget, {"epsilon": 1.0, "delta": 1.0}, "delta"),
    (privacy.Budget, {"epsilon": -1}, "epsilon"),
    (GRADIENTS, {"rule": pvi.AnalyticUpdate(), "budget": FREE}, ""),
    (GRADIENTS, {"rule": AVERAGING, "budget": FREE}, ""),
    (GRADIENTS, {"rule": VARIATIONAL(batch_size=None, optimiser=LBFGS), "budget": FREE}, ""),
    (GRADIENTS, {"rule": VARIATIONAL(stopping=pvi.Plateau()), "budget": FREE}, ""),
    (GRADIENTS, {"rule": VARIATIONAL(stateful=True), "budget": FREE}, ""),
    (GRADIENTS, {"rule": FIXED_POINT(), "budget": FREE, "clip": INF}, "clip"),
    (GRADIENTS, {"rule": FIXED_POINT(), "budget": FREE, "clip": 0.0}, "clip"),
    (GRADIENTS, {"rule": FIXED_POINT(), "budget": FREE, "sampling_rate": 0.0}, "sampling_rate"),
    (GRADIENTS, {"rule": FIXED_POINT(), "budget": FREE, "noise_multiplier": -1.0}, "noise"),
    (CHANGES, {"rule": pvi.AnalyticUpdate, "budget": FREE}, "update rule"),
    (CHANGES, {"rule": pvi.AnalyticUpdate(), "budget": FREE, "clip": -1.0}, "clip"),
    (CHANGES, {"rule": pvi.AnalyticUpdate(), "budget": FREE, "clip": INF}, "clip"),
    (CHANGES, {"rule": pvi.AnalyticUpdate(), "budget": FREE, "noise_multiplier": -1.0}, "noise"),
    (privacy.LocalAveraging, {"rule": pvi.AnalyticUpdate, "budget": FREE}, "update rule"),
    (privacy.LocalAveraging, {"rule": pvi.AnalyticUpdate(), "budget": FREE, "parts": 0}, "parts"),
    (summed, {"limit": 1000.0}, "power of two"),
    (summed, {"limit": INF}, "power of two"),
    (summed, {"least": 2}, "least must lie between 3"),
    (summed, {"least": 5}, "which is 4"),
    (summed, {"damping": 1.5}, "damping must lie in"),
]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [*GAUSSIAN_PROCESSES, *UPDATES, *SERVERS, *MODELS, *PRIVACY],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_settings_that_make_no_sense_are_refused(make, options, message):
    with pytest.raises(InvalidDataError, match=message):
        make(**options)
