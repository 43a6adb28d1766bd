"""Arguments of another type, out of range or without sense: one clear error that names them."""

import inspect
from dataclasses import MISSING, fields, is_dataclass, replace

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp import bnn, datasets, evaluate, expfam, gp, linear, losses, mixture, pvi, samplers
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp import PowerEP
from streaming_gp.hierarchical import HierarchicalModel
from streaming_gp.pvi import privacy
from streaming_gp.sklearn import StreamingGPRegressor
from tests.hostile.streams import FIXED, QUICK, dates, targets

gk, gl = gpflow.kernels, gpflow.likelihoods
WRONG = {
    "int": ["3", 2.5, True, float("nan"), -5, None],
    "float": ["0.5", float("nan"), None, True, 1j],
    "bool": ["no", 2, None],
}
RANGES = ["Positive", "NotNegative", "AboveOne", "Fraction", "Decay", "Probability"]
WRONG |= {kind: [*WRONG["float"], -1.0] for kind in RANGES}
WRONG["PositiveInteger"] = [*WRONG["int"], 0]


def strategies():
    """Every public dataclass of settings that can be made without arguments."""
    rooms = (sgp, pvi, gp, samplers, losses)
    found = {c for room in rooms for c in vars(room).values() if inspect.isclass(c)}
    return sorted(
        (c for c in found if is_dataclass(c) and _has_defaults(c)), key=lambda c: c.__name__
    )


def _has_defaults(cls):
    plain = not inspect.isabstract(cls) and cls.__name__ not in ("Process", "History", "Round")
    return plain and all(
        field.default is not MISSING or field.default_factory is not MISSING
        for field in fields(cls)
    )


def _cases(wrong):
    for cls in strategies():
        for field in fields(cls):
            kinds = str(field.type).split(" | ")
            for value in wrong.get(kinds[0], []):
                if not (value is None and "None" in kinds) and set(kinds[1:]) <= {"None"}:
                    yield cls, field.name, value


def check_refused(message, call, *arguments, **options):
    """In a function of its own, of which pytest shows the arguments where it fails."""
    with pytest.raises(InvalidDataError, match=message):
        call(*arguments, **options)


def test_a_strategy_refuses_values_of_other_types():
    cases = list(_cases(WRONG))
    assert len(cases) > 300
    for cls, name, value in cases:
        check_refused(f"{name.replace('_', '.')}.*got", cls, **{name: value})


OUTSIDE = {
    "Positive": [0.0],
    "NotNegative": [-1e-9],
    "NotNegativeFinite": [-1e-9, np.inf],
    "Fraction": [0.0, 1.1],
    "Decay": [-0.1, 1.0],
    "Probability": [-0.1, 1.1],
    "PositiveInteger": [0],
}
"""Just beyond each range."""


def test_a_strategy_refuses_values_beyond_a_range():
    for kind, values in OUTSIDE.items():
        cases = list(_cases({kind: values}))
        assert cases, kind
        for cls, name, value in cases:
            check_refused(rf"{cls.__name__}\.{name} must .*, got", cls, **{name: value})


def made(kernel=None, likelihood=None, mean_function=None, **options):
    options.setdefault("hyperparameters", FIXED)
    options.setdefault("pseudo_points", sgp.PrivatePseudoPoints(2))
    kernel = gk.SquaredExponential() if kernel is None else kernel
    likelihood = gl.Gaussian(0.1) if likelihood is None else likelihood
    options.setdefault("optimiser", QUICK)
    return sgp.StreamingGP(kernel, likelihood, mean_function, **options)


LINE = linear.BayesianLinearRegression(2)
MODELS = {
    "kernel name": (lambda: made("rbf"), "kernel must be a GPflow kernel, got 'rbf'"),
    "kernel class": (lambda: made(gk.Matern32), "kernel must be a GPflow kernel, got <class"),
    "likelihood name": (lambda: made(likelihood="gaussian"), "likelihood must be a GPflow"),
    "likelihood class": (lambda: made(likelihood=gl.Gaussian), "likelihood must be a GPflow"),
    "mean number": (lambda: made(mean_function=3.0), "mean_function must be a GPflow mean"),
    "optimiser": (lambda: made(optimiser="adam"), "optimiser must be a strategy"),
    "policy": (lambda: made(policy="raise"), "policy must be a strategy"),
    "bound": (lambda: made(bound="tight"), "bound must be a strategy"),
    "learning": (lambda: made(learning="always"), "learning must be a strategy"),
    "forgetting": (lambda: made(forgetting=0.5), "forgetting must be a strategy"),
    "points": (lambda: made(pseudo_points=10), "pseudo_points must be a strategy"),
    "a class of points": (lambda: made(pseudo_points=sgp.PrivatePseudoPoints), "such as Private"),
    "hyperparameters": (lambda: made(hyperparameters="variational"), "be a strategy such as"),
    "seed": (lambda: made(seed=-1), "seed must be an integer, at least 0"),
    "seed text": (lambda: made(seed="1"), "seed must be an integer"),
    "samples": (lambda: made(num_prediction_samples="4"), "must be an integer, got '4'"),
    "latent": (lambda: made(num_latent_gps=-1), "num_latent_gps must be positive"),
    "alpha": (lambda: made(alpha="0.5"), "alpha must be a number, got '0.5'"),
    "small alpha": (
        lambda: made(likelihood=gl.Bernoulli(), alpha=1e-12), "at least 1.5e-08, .* got 1e-12"
    ),
    "journal": (lambda: made(journal=3), "wanted the path of a file or folder, got 3"),
    "estimator": (
        lambda: StreamingGPRegressor(pseudo_points=10).fit(dates(), dates()[:, 0]),
        "pseudo_points must be a strategy",
    ),
    "estimator kernel": (
        lambda: StreamingGPRegressor(kernel="rbf").fit(dates(), dates()[:, 0]),
        "kernel must be one of",
    ),
    "no state": (
        lambda: sgp.StreamingGP.from_state(None, gk.Matern32(), gl.Gaussian()), "state must be"
    ),
    "no file": (
        lambda: sgp.StreamingGP.load(None, gk.Matern32(), gl.Gaussian()), "wanted the path"
    ),
    "partition": (lambda: datasets.partition_iid(dates(), dates(), "3"), "num_clients must be"),
    "partition seed": (lambda: datasets.partition_iid(dates(), dates(), 2, -1), "seed must be"),
    "concentration": (
        lambda: datasets.partition_by_dirichlet(dates(), dates()[:, :1], 2, np.inf), "be finite"
    ),
    "weights": (lambda: linear.BayesianLinearRegression(2, prior_variance=np.inf), "be finite"),
    "noise": (lambda: linear.BayesianLinearRegression(2, noise_variance=np.inf), "be finite"),
    "network": (
        lambda: bnn.MeanFieldBNN([2, 1], gl.Gaussian(), prior_variance=np.inf), "be finite"
    ),
    "moment network": (lambda: bnn.MomentNetwork(2, prior_variance=np.inf), "be finite"),
    "sizes": (lambda: bnn.MeanFieldBNN(5, gl.Gaussian()), "positive integers as sizes, got 5"),
    "hidden sizes": (lambda: bnn.MomentNetwork(2, hidden=5), "integers as hidden, got 5"),
    "sizes of heads": (lambda: bnn.MultiHeadBNN(3, 2, gl.Gaussian()), "integers as sizes, got 3"),
    "input shape": (
        lambda: bnn.Network(3, [bnn.Dense(1)], gl.Gaussian()), "integers as input_shape, got 3"
    ),
    "layers": (lambda: bnn.Network([3], bnn.Dense(1), gl.Gaussian()), "layers must be a list"),
    "layer": (lambda: bnn.Network([3], [1], gl.Gaussian()), "each layer must be .* got 1"),
    "no likelihood": (lambda: bnn.MeanFieldBNN([2, 1], None), "must be a GPflow likelihood"),
    "network seed": (lambda: bnn.MomentNetwork(2, seed=-1), "seed must be an integer"),
    "no model of personal": (lambda: pvi.PersonalModel("x", [0]), "str has no prior"),
    "hierarchy": (
        lambda: HierarchicalModel(bnn.MomentNetwork(2)), "MomentNetwork has no log_likelihood"
    ),
    "scales": (lambda: HierarchicalModel(LINE, scale_sd=np.inf), "scale_sd must .* got inf"),
    "noise of a hierarchy": (
        lambda: HierarchicalModel(LINE, noise_sd=np.inf), "noise_sd must .* got inf"
    ),
    "no clutter": (lambda: mixture.ClutterModel("x"), "must be a Clutter, got 'x'"),
    "clutter family": (
        lambda: mixture.ClutterModel(mixture.Clutter([[1.0]]), family="Normal"), "of Gaussians"
    ),
    "clutter width": (lambda: mixture.Clutter([[np.inf]]), "covariance must be symmetric"),
    "clutter text": (lambda: mixture.Clutter("a"), "covariance must hold real numbers"),
    "mixture mean": (lambda: mixture.GaussianMixture(2, 2, mean="a"), "mean must hold real"),
    "clutter": (
        lambda: mixture.ClutterModel(mixture.Clutter([[1.0]]), prior_variance=np.inf), "be finite"
    ),
}  # fmt: skip


def test_what_a_model_is_made_of_is_checked():
    for make, message in MODELS.values():
        check_refused(message, make)


DATA = dates(), targets(dates())
CALLS = {
    "damping": (lambda m: m.revisit("batch-0", DATA, damping="0.5"), "damping must be a number"),
    "round": (lambda m: m.synchronous_round({"a": DATA}, damping=0), r"must lie in \(0, 1\]"),
    "round of a list": (lambda m: m.synchronous_round([DATA]), "wanted a mapping .* got a list"),
    "samples": (lambda m: m.predict_f_samples(dates(), 2.0), "must be a positive integer"),
    "samples negative": (lambda m: m.predict_f_samples(dates(), -1), "must be positive"),
    "seed": (lambda m: m.predict_f_samples(dates(), 2, seed=-1), "seed must be an integer"),
    "seed half": (lambda m: m.predict_f_samples(dates(), 2, seed=0.5), "seed must be an integer"),
    "draws": (lambda m: m.hyperparameter_samples(2.0), "num_samples must be an integer"),
    "learn": (lambda m: m.update(DATA, learn="no"), "learn must be true or false, got 'no'"),
    "time": (lambda m: m.update(DATA, time="1"), "time must be a finite number"),
    "callback": (lambda m: m.update(DATA, callback=3), "callback must be a function"),
    "full": (lambda m: m.predict_f(dates(), full_cov="no"), "full_cov must be true or false"),
    "budget": (lambda m: m.online(budget=6.5), "budget must be a positive integer, got 6.5"),
    "memory": (lambda m: m.online(memory="long"), "memory must be a number, got 'long'"),
    "compress": (lambda m: m.compress(2.0), "must be a positive integer"),
    "fade": (lambda m: m.fade("0.5"), "power must be a number, got '0.5'"),
    "fade true": (lambda m: m.fade(True), "power must be a number, got True"),
    "keep": (lambda m: evaluate.prequential(m, [], keep="x"), "keep must be an integer"),
    "keep half": (lambda m: evaluate.prequential(m, [], keep=2.5), "keep must be an integer"),
    "adopt": (lambda m: m.adopt(None), "wanted a ledger, got a NoneType"),
    "adopt names": (
        lambda m: m.adopt(pvi.Ledger(m.ledger.prior, {1: m.factors["batch-0"]})), "a string, got 1"
    ),
    "absorb": (lambda m: m.absorb(None), "wanted an online object"),
    "save": (lambda m: m.save(3.5), "wanted the path of a file"),
}  # fmt: skip


def test_what_a_model_is_told_is_checked(unchanged):
    for call, message in CALLS.values():
        check_refused(message, call, unchanged)


class Mean(gpflow.functions.MeanFunction):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def __call__(self, X):
        return self.function(X)


def of(shape, dtype=tf.float64):
    return Mean(lambda X: tf.zeros([tf.shape(X)[0], *shape], dtype))


def tasks(outputs=2):
    return gk.SquaredExponential(active_dims=[0]) * gk.Coregion(outputs, 1, active_dims=[1])


X = np.random.default_rng(0).uniform(-1.0, 1.0, (6, 2))
MISFITS = {
    "three columns": ({"mean_function": of([3])}, "mean function gives float64 of shape .2, 3."),
    "float32": ({"mean_function": of([1], tf.float32)}, "gives float32 .* wanted float64"),
    "one dimension": ({"mean_function": of([])}, r"shape \[2\] at 2 inputs"),
    "no mean": ({"mean_function": Mean(lambda X: X @ np.zeros([3, 1]))}, "function cannot"),
    "columns": ({"kernel": gk.Matern32(active_dims=[5])}, r"active_dims of Matern32 are \[5\]"),
    "negative": ({"kernel": gk.Matern32(active_dims=[-1])}, r"active_dims of Matern32 are \[-1\]"),
    "linear columns": ({"kernel": gk.Linear(active_dims=[5])}, r"active_dims of Linear are \[5\]"),
    "variances": ({"kernel": gk.Linear(variance=[1.0] * 3)}, "kernel cannot .* of 2 columns"),
    "changes": ({"kernel": gk.ChangePoints([gk.Matern12(), gk.Matern32()], [0.0])}, "of 2 columns"),
    "index": (
        {"kernel": gk.Matern32() + gk.Coregion(2, 1, active_dims=[5])}, "active_dims of Coregion"
    ),
    "inner columns": (
        {"kernel": gk.Matern32() + gk.Periodic(gk.Matern12(active_dims=[2]))}, "of Periodic"
    ),
    "lengthscales": ({"kernel": gk.Matern32(lengthscales=[1.0] * 3)}, "inputs of 2 columns"),
    "tasks": ({"kernel": tasks()}, "inputs hold the output .*, but Coregion has outputs 0 to 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_modules_that_do_not_fit_the_data_are_named(name):
    options, message = MISFITS[name]
    model = made(**options)
    check_refused(message, model.update, (X, X[:, :1]))
    assert not model.factors
    assert model.num_updates == 0


@pytest.mark.parametrize(
    "kernel", [gk.Matern32(lengthscales=[1.0] * 3), gk.Periodic(gk.Matern12(), period=[1.0, 2.0])]
)
def test_several_numbers_for_one_column_are_refused(kernel):
    check_refused("reads one column", made(kernel).update, (X[:, :1], X[:, :1]))


def test_an_index_beyond_the_outputs_is_named_at_predictions_too():
    model = made(tasks())
    check_refused("hold the output 2, but Coregion", model.predict_f, [[0.0, 2.0]])


def test_the_last_column_says_which_likelihood():
    likelihood = gl.SwitchedLikelihood([gl.Gaussian(0.1), gl.Gaussian(0.2)])
    model = made(likelihood=likelihood, num_latent_gps=1)
    for which in (2.0, -1.0, 0.5):
        data = X, np.c_[X[:, 0], np.full(6, which)]
        check_refused("which likelihood, 0 to 1", model.update, data)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-5, 1e-3, 1e5])
def test_observations_of_any_size_give_finite_predictions(scale):
    model = made()
    model.update((X, scale * X[:, :1]))
    mean, variance = model.predict_f(X)
    assert np.isfinite(mean).all()
    assert (np.asarray(variance) > 0.0).all()


@pytest.mark.slow
@pytest.mark.parametrize("count", [1e15, 1e300])
def test_huge_counts_are_learned_or_refused(count):
    model = made(likelihood=gl.Poisson())
    with pytest.raises(sgp.StreamingGPError):
        model.update((X, np.full((6, 1), count)))
    assert not model.factors


NET = bnn.MeanFieldBNN([2, 2, 1], likelihood=gl.Gaussian())


def test_a_network_is_told_how_many_by_integers():
    for options in ({"num_samples": "3"}, {"num_samples": 0}, {"seed": "a"}):
        check_refused("must be", NET.predict, NET.prior(), X, **options)


def test_a_copy_of_a_strategy_is_checked_as_well():
    points, message = sgp.PrivatePseudoPoints(3), "optimise_locations must be true or false"
    check_refused(message, replace, points, optimise_locations="no")


NAN, INF = float("nan"), float("inf")
FREE = privacy.Budget(INF)
FIXED_POINT, VARIATIONAL, LBFGS = pvi.FixedPointUpdate, pvi.VariationalUpdate, pvi.LBFGS()
GRADIENTS, CHANGES = privacy.PrivateGradients, privacy.PrivateChanges
PRIVATE = sgp.PrivatePseudoPoints
HYPERPARAMETERS = sgp.VariationalHyperparameters
AVERAGING = pvi.AveragingUpdate(0.5, VARIATIONAL(), proximal=1.0)
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
    (sgp.LocalOptimiser, {"method": "LBFGS"}, "method must be in .*got 'LBFGS'"),
    (sgp.LocalOptimiser, {"location_iterations": -1}, "location_iterations"),
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
    (VARIATIONAL, {"optimiser": LBFGS}, "batch_size must be None"),
    (VARIATIONAL, {"batch_size": None, "optimiser": LBFGS, "stateful": True}, "must be False"),
    (VARIATIONAL, {"batch_size": None, "optimiser": LBFGS, "stopping": pvi.Plateau()},
     "stopping must be None"),
    (VARIATIONAL, {"optimiser": pvi.VariationalOnlineNewton(), "divergence": expfam.Renyi(0.5)},
     "KL divergence only"),
    (pvi.TiedUpdate, {"rule": pvi.PowerEPUpdate(), "pieces": 0}, "pieces"),
    (pvi.PersonalUpdate, {"rule": pvi.SNEPUpdate(samplers.NUTS())}, "SNEPUpdate goes on from its"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "beta": 0.0}, "beta"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "beta": INF}, "beta"),  # data to the power 0
    (samplers.NUTS, {"acceptance": 0.0}, "acceptance"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "learning_rate": 1.0}, "learning_rate"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "sync": 0}, "sync"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "loop": 3}, "loop must be a strategy"),
    (pvi.MaskedAveraging, {"optimiser": pvi.Adam()}, "optimiser must be a strategy"),
    (sgp.VariationalHyperparameters, {"family": "full"}, "family must be one of Gaussians"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "outer": 0}, "outer"),
    (pvi.SNEPUpdate, {"sampler": samplers.NUTS(), "min_variance": -1.0}, "min_variance"),
    (samplers.NUTS, {"acceptance": 1.5}, "acceptance must lie in"),
    (samplers.NUTS, {"step_size": INF}, "step_size must be positive and finite"),
    (pvi.PowerEPUpdate, {"alpha": INF}, "alpha must be positive and finite"),
    *((rule, {"alpha": 1e-10}, "at least 1.5e-08, .* got 1e-10; its limit at 0 is FixedPointUpdate")
      for rule in (pvi.PowerEPUpdate, pvi.StochasticEPUpdate)),
    (samplers.AdaptiveSGLD, {"offset": -1.0}, "offset must not be negative"),
    (samplers.AdaptiveSGLD, {"max_noise": -1.0}, "max_noise must not be negative"),
    (losses.BetaLoss, {"beta": 0.0}, "beta"),
    (losses.GammaLoss, {"gamma": -1.0}, "gamma"),
    *((expfam.BetaDivergence, {"beta": beta}, "beta") for beta in (1.0, INF)),
    (expfam.Renyi, {"alpha": "a"}, "alpha"),
    *((divergence, {"weight": -1.0}, "weight") for divergence in (expfam.KL, expfam.Fisher)),
    (pvi.SplitPriorUpdate, {"rule": VARIATIONAL(), "share": 3.0}, "share"),
    (pvi.AveragingUpdate, {"rule": VARIATIONAL(), "share": -1.0}, "share"),
    (mixture.BirthUpdate, {"attempts": 0}, "attempts"),
    *((rule, {name: value}, f"{name} must be a strategy such as") for rule, name, value in [
        *((VARIATIONAL, "optimiser", one) for one in ("adam", pvi.Adam, 0.1)),
        *((rule, "divergence", one) for rule in (VARIATIONAL, FIXED_POINT)
          for one in ("KL", expfam.KL, None)),
        *((rule, "loss", one) for rule in (VARIATIONAL, FIXED_POINT)
          for one in ("beta", losses.BetaLoss)),
        (VARIATIONAL, "stopping", 3),
        *((rule, "sampler", one) for rule in (pvi.SNEPUpdate, pvi.MomentSharingUpdate)
          for one in ("NUTS", samplers.NUTS)),
        *((rule, "rule", one) for one in ("fixed point", FIXED_POINT)
          for rule in (pvi.DistributedEPUpdate, pvi.PersonalUpdate, bnn.NewHeads,
                       mixture.BirthUpdate)),
    ]),
    *((rule, {"rule": one, **options}, "rule must be a strategy such as")
      for one in ("fixed point", FIXED_POINT)
      for rule, options in [(pvi.SplitPriorUpdate, {"share": 0.5}),
                            (pvi.AveragingUpdate, {"share": 0.5}),
                            (pvi.TiedUpdate, {"pieces": 2})]),
    (pvi.AveragingUpdate, {"rule": FIXED_POINT(), "share": 0.5}, "such as pvi.VariationalUpdate"),
]  # fmt: skip
SERVERS = [
    (pvi.Serial, {"latency": -1}, "latency"),
    *((pvi.Arrivals, {"groups": groups}, "wanted groups") for groups in ([], [[]])),
    (pvi.BacktrackDamping, {"attempts": 0}, "attempts must be positive"),  # no step, ever
    (pvi.OpinionPool, {"weights": {"c0": -1.0}}, "must be positive, got -1"),
    (pvi.OpinionPool, {"weights": [1.0]}, "a weight for each client"),
    (pvi.Sequential, {"order": "shuffled"}, "order is a list of clients"),
    (pvi.Synchronous, {"durations": {}}, "durations"),
    *(
        (pvi.Asynchronous, {"durations": {"c0": seconds}}, "duration of a visit to 'c0'")
        for seconds in (-1.0, INF)
    ),
    (pvi.Synchronous, {"durations": {"c0": None}}, "visit to 'c0' must be a number, got None"),
    (pvi.FedAdam, {"adaptivity": INF}, "adaptivity must be positive and finite"),
    (pvi.LikelihoodParameters, {"max_step": INF}, "max_step must be positive and finite"),
    *(
        (rule, {"learning_rate": INF}, "learning_rate must be positive and finite, got inf")
        for rule in (
            VARIATIONAL,
            pvi.Adam,
            pvi.SGD,
            pvi.VariationalOnlineNewton,
            pvi.ServerAdam,
            pvi.FedAvg,
            pvi.FedAdam,
        )
    ),
    (pvi.TrimmedMean, {"fraction": 0.5}, r"fraction must lie in \[0, 0.5\), got 0.5"),
]
SETTINGS_OF_MODELS = [
    (mixture.GaussianMixture, {"num_components": 2, "num_dimensions": 1, "dof": "3"}, "dof"),
    (linear.BayesianLinearRegression, {"num_inputs": 3, "noise_variance": -1.0}, "noise_variance"),
    (linear.logistic_regression, {"num_inputs": 0}, "num_inputs"),
    (linear.logistic_regression, {"num_inputs": 2, "family": "Normal"}, "one of Gaussians"),
    *((linear.GeneralisedLinearModel, {"num_inputs": 2, "likelihood": likelihood}, message)
      for likelihood, message in [
          ("Bernoulli", "likelihood must be a GPflow likelihood, got 'Bernoulli'"),
          (gl.Softmax(3), "one latent function, got Softmax, which has 3"),
          (gl.HeteroskedasticTFPConditional(), "one latent function, got Heteroskedastic.* has 2"),
      ]),
    *((linear.GPOnInputs, {"kernel": kernel, "likelihood": gl.Gaussian(), "Z": Z}, message)
      for kernel, Z, message in [
          ("RBF", np.ones((3, 1)), "kernel must be a GPflow kernel, got 'RBF'"),
          (gk.Matern32(), 3.0, "Z must have shape"),
          (gk.Matern32(), np.ones(3), r"Z must have shape \[N, columns\]"),
      ]),
    (bnn.MultiHeadBNN, {"sizes": [2, 2], "num_heads": 0,
                        "likelihood": gpflow.likelihoods.Softmax(2)}, "num_heads"),
    *((pvi.PersonalModel, {"model": linear.BayesianLinearRegression(2), "personal": personal}, "")
      for personal in ([], [0, 1], [5], [True, True], [[0], [0, 1]])),
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
    *(
        (GRADIENTS, {"rule": FIXED_POINT(), "budget": FREE, "noise_multiplier": noise}, "noise")
        for noise in (-1.0, INF)
    ),
    (privacy.Release, {"noise_multiplier": INF}, "noise_multiplier must .* got inf"),
    *(
        (kind, {"rule": FIXED_POINT(), "budget": 2.0}, "budget must be a privacy.Budget, got 2.0")
        for kind in (GRADIENTS, CHANGES, privacy.LocalAveraging)
    ),
    *(
        (
            privacy.noise_multiplier_for,
            {"budget": privacy.Budget(1.0), "releases": 3, "tolerance": t},
            "tolerance must be",
        )
        for t in (0.0, -1.0, INF, NAN)
    ),
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
    "cases",
    [GAUSSIAN_PROCESSES, UPDATES, SERVERS, SETTINGS_OF_MODELS, PRIVACY],
    ids=["Gaussian processes", "updates", "servers", "models", "privacy"],
)
def test_settings_that_make_no_sense_are_refused(cases):
    for make, options, message in cases:
        check_refused(message, make, **options)
