"""Updates that learn nothing: linear algebra at the present q(ε)."""

from dataclasses import dataclass

import gpflow
import numpy as np
import pytest
import tensorflow_probability as tfp

import streaming_gp as sgp
from streaming_gp import pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.bounds import Exact, PowerEP, Variational
from streaming_gp.gp.fitting import fit
from streaming_gp.gp.learning_schedule import EveryUpdate, NeverLearn, UntilSettled
from tests.oracles.builders import (
    EVERY_INPUT,
    QUICK,
    BoundOfOnesOwn,
    assert_same_arrays,
    known_model,
    labelled,
    predicted,
    regressor,
)
from tests.tolerances import ALGEBRA

FIXED_POINTS = sgp.PrivatePseudoPoints(6, optimise_locations=False)
STRATEGIES = {
    "own": FIXED_POINTS,
    "all": EVERY_INPUT,
    "shared": sgp.SharedPseudoPoints(8, optimise_locations=False),
}


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(points, id=name, marks=[pytest.mark.slow] * (name == "shared"))
        for name, points in STRATEGIES.items()
    ],
)
def test_absorbing_is_an_update_at_known_hyperparameters(data, new_inputs, points):
    X, Y = data
    model, batches = known_model(points), [(X[i::3], Y[i::3]) for i in range(3)]
    learned = [model.update(batch) for batch in batches]
    before = [predicted(model, new_inputs), model.predict_f(new_inputs, True)]
    model.adopt(pvi.Ledger(model.prior()))
    for one, batch in zip(learned, batches, strict=True):
        other = model.update(batch, learn=False)
        assert other.iterations == 0
        np.testing.assert_allclose(one.free_energy, other.free_energy, rtol=ALGEBRA)
    for full_cov, wanted in enumerate(before):
        assert_same_arrays(model.predict_f(new_inputs, bool(full_cov)), wanted, ALGEBRA)


@dataclass(frozen=True)
class EnergyOfOnesOwn(PowerEP):
    """Likewise."""


TWO_OUTPUTS = gpflow.kernels.SeparateIndependent(
    [gpflow.kernels.SquaredExponential(), gpflow.kernels.Matern32(0.5)]
)
WITH_PRIOR = gpflow.kernels.Matern32()
WITH_PRIOR.variance.prior = tfp.distributions.Gamma(np.float64(3.0), np.float64(2.0))
SLOPING_NOISE = gpflow.functions.Linear(A=[[0.05], [0.02]], b=[0.4])


ON_POINTS = [
    pytest.param(FIXED_POINTS, id="own"),
    pytest.param(sgp.SharedPseudoPoints(8, growth=6, kept_batches=1), id="shared"),
    pytest.param(STRATEGIES["shared"], id="shared fixed", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("known", "own"),
    [
        pytest.param(Variational(), BoundOfOnesOwn(), id="variational", marks=pytest.mark.slow),
        pytest.param(PowerEP(0.4), EnergyOfOnesOwn(0.4), id="power EP"),
    ],
)
@pytest.mark.parametrize("points", ON_POINTS)
@pytest.mark.parametrize(
    ("kernel", "likelihood", "options"),
    [
        pytest.param(
            gpflow.kernels.Matern32(),
            gpflow.likelihoods.Gaussian(0.1),
            {},
            id="plain",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            gpflow.kernels.Matern32() + gpflow.kernels.White(0.05),
            gpflow.likelihoods.Gaussian(0.1),
            {"mean_function": gpflow.functions.Constant(0.7)},
            id="white and mean",
        ),
        pytest.param(
            gpflow.kernels.Matern32(),
            gpflow.likelihoods.Gaussian(scale=SLOPING_NOISE),
            {},
            id="sloping noise",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            TWO_OUTPUTS,
            gpflow.likelihoods.Gaussian([0.1, 0.3]),
            {"num_latent_gps": 2},
            id="two outputs",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            WITH_PRIOR,
            gpflow.likelihoods.Gaussian(0.1),
            {"hyperparameters": sgp.PointHyperparameters()},
            id="a prior over a point",
        ),
    ],
)
def test_absorbing_in_numpy_is_absorbing_by_the_bound(
    rng, new_inputs, known, own, points, kernel, likelihood, options
):
    outputs = options.get("num_latent_gps", 1)
    X = rng.uniform(-3.0, 3.0, (60, 2))
    Y = np.sin(X[:, :1] + np.arange(outputs)) + 0.3 * rng.standard_normal((60, outputs))
    found = []
    for bound in (known, own):
        model = sgp.StreamingGP(kernel, likelihood, pseudo_points=points, bound=bound, **options)
        infos = [model.update((X[i::3], Y[i::3]), learn=False) for i in range(3)]
        reports = [(i.free_energy, i.unexplained, i.shown_error, i.nugget) for i in infos]
        scales = [factor.log_scale for factor in model.factors.values()]
        found.append([reports, scales, *model.predict_f(new_inputs)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


@dataclass(frozen=True)
class SitesOfOnesOwn(Exact):
    """Is absorbed by TensorFlow, too."""


BOUNDS = (Variational(), BoundOfOnesOwn()), (Exact(), SitesOfOnesOwn())


@pytest.mark.parametrize(
    ("likelihood", "options"),
    [
        (gpflow.likelihoods.Bernoulli(), {}),
        pytest.param(gpflow.likelihoods.Softmax(3), {"num_latent_gps": 3}, marks=pytest.mark.slow),
        (
            gpflow.likelihoods.StudentT(0.3),  # whose sites may be negative, and are cut off
            {
                "mean_function": gpflow.functions.Constant(0.7),
                "hyperparameters": sgp.PointHyperparameters(),
            },
        ),
    ],
    ids=["labels", "classes", "heavy tails and a point"],
)
@pytest.mark.parametrize("points", [pytest.param(EVERY_INPUT, id="all"), *ON_POINTS])
def test_absorbing_sites_in_numpy_is_absorbing_by_the_bound(
    rng, new_inputs, likelihood, options, points
):
    X = rng.uniform(-3.0, 3.0, (120, 2))
    Y = (np.sin(X[:, :1]) + 0.3 * rng.standard_normal((120, 1)) > 0.0).astype(float)
    Y[::9] += Y[::9] > 0.0  # a third class, and outliers of regression
    if isinstance(likelihood, gpflow.likelihoods.Bernoulli):
        Y = np.minimum(Y, 1.0)
    found = []
    for bound in BOUNDS[points is EVERY_INPUT]:
        model = sgp.StreamingGP(
            WITH_PRIOR, likelihood, pseudo_points=points, bound=bound,
            optimiser=sgp.LocalOptimiser(site_steps=200), **options,
        )  # fmt: skip
        infos = [model.update((X[i::3], Y[i::3]), learn=False) for i in range(3)]
        reports = [
            (i.free_energy, i.clipped_sites, i.unexplained, i.shown_error or 0.0, i.nugget)
            for i in infos
        ]
        scales = [factor.log_scale for factor in model.factors.values()]
        found.append([reports, scales, *model.predict_f(new_inputs)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "likelihood", [gpflow.likelihoods.Gaussian(0.1), gpflow.likelihoods.Bernoulli()]
)
@pytest.mark.parametrize("points", [sgp.PrivatePseudoPoints(4), sgp.SharedPseudoPoints(6)])
def test_what_is_kept_of_a_fit_is_what_the_bound_says(rng, monkeypatch, points, likelihood):
    """The compiled bound and NumPy describe the same solution."""
    kept, said = [], fit._said

    def spy(fitter, cavity, solution, onto):
        kept.append((fitter, cavity, solution, onto))
        return said(fitter, cavity, solution, onto)

    monkeypatch.setattr(fit, "_said", spy)
    model = known_model(points, likelihood, sgp.VariationalHyperparameters(), optimiser=QUICK)
    X, Y = labelled(rng, 40)
    for i in range(2):
        model.update((X[i::2], Y[i::2]))
    assert len(kept) == 2
    for fitter, cavity, solution, onto in kept:
        found, left = said(fitter, cavity, solution, onto)
        other, wanted = fitter.bound.pseudo_observations(
            solution.report.epsilon, solution.offsets, solution.variables, solution.problem,
            fitter.solver.sites_of(solution),
        )  # fmt: skip
        np.testing.assert_allclose(left, wanted, rtol=1e-7)
        information = [
            one.precision_factor @ np.swapaxes(one.precision_factor, 1, 2) for one in (found, other)
        ]
        weighted = [one.precision_factor @ one.pseudo_targets for one in (found, other)]
        for one, two in (information, weighted, (found.Z, other.Z)):
            np.testing.assert_allclose(one, two, atol=1e-7 * np.abs(two).max())


def test_absorbing_labels_is_an_update_at_known_hyperparameters(rng, new_inputs):
    X, Y = labelled(rng)
    model = known_model(
        FIXED_POINTS, gpflow.likelihoods.Bernoulli(),
        optimiser=sgp.LocalOptimiser(rounds=1, site_steps=200),
    )  # fmt: skip
    found = []
    for learn in (None, False):
        if found:
            model.adopt(pvi.Ledger(model.prior()))
        model.update((X[:30], Y[:30]), learn=learn)
        model.update((X[30:], Y[30:]), learn=learn)
        found.append([*predicted(model, new_inputs), model.predict_f(new_inputs, True)[1]])
    assert_same_arrays(*found, 1e-6)  # where the steps on the sites rest


@pytest.mark.slow
@pytest.mark.parametrize("points", [sgp.PrivatePseudoPoints(5), EVERY_INPUT], ids=["own", "all"])
def test_absorbing_leaves_the_hyperparameters_as_they_are(data, points):
    X, Y = data
    model = regressor(pseudo_points=points)
    model.update((X[:45], Y[:45]))
    q, values = model.hyperparameter_posterior, model.parameter_vector.value()
    info = model.update((X[45:], Y[45:]), learn=False)
    assert info.iterations == 0
    np.testing.assert_allclose(model.hyperparameter_posterior.mean, q.mean, rtol=ALGEBRA)
    np.testing.assert_allclose(model.hyperparameter_posterior.variance, q.variance, rtol=ALGEBRA)
    np.testing.assert_allclose(model.parameter_vector.value(), values, rtol=ALGEBRA)
    error = np.asarray(model.predict_f(X)[0]) - Y
    assert np.mean(error**2) < 0.5 * np.var(Y)


def test_a_schedule_says_which_updates_learn(data, tmp_path):
    X, Y = data
    model = regressor(pseudo_points=EVERY_INPUT, learning=EveryUpdate(every=2))
    iterations = [model.update((X[i::5], Y[i::5])).iterations for i in range(4)]
    assert [count > 0 for count in iterations] == [True, False, True, False]
    assert model.update((X[4::5], Y[4::5]), learn=False).iterations == 0
    model.save(tmp_path / "stream.npz")
    loaded = sgp.StreamingGP.load(tmp_path / "stream.npz", model.kernel, model.likelihood)
    assert loaded.settings.learning == EveryUpdate(every=2)
    assert loaded.state.shift == model.state.shift < np.inf


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (EveryUpdate(), [True, True, True, True]),
        (EveryUpdate(every=3), [True, False, False, True]),
        (UntilSettled(shift=0.5, every=None, growth=None), [True, True, False, False]),
        (UntilSettled(shift=0.5, every=3, growth=None), [True, True, False, True]),
        (UntilSettled(shift=0.5, every=None, growth=1.0), [True, True, False, True]),
        (NeverLearn(), [False, False, False, False]),
    ],
)
def test_schedules(schedule, wanted):
    shifts = [np.inf, 0.7, 0.3, 0.1]
    assert [schedule.wants(n, shift) for n, shift in enumerate(shifts)] == wanted


def test_a_settled_stream_learns_whenever_it_has_grown_by_half():
    schedule = UntilSettled(every=None)
    learns = [n for n in range(101) if schedule.wants(n, 0.0)]
    assert learns == [1, 2, 3, 5, 7, 11, 17, 25, 38, 57, 86]


def test_a_growth_of_next_to_nothing_is_every_update():
    assert all(UntilSettled(every=None, growth=1e-320).wants(n, 0.0) for n in range(1, 50))


@pytest.mark.parametrize("make", [lambda: EveryUpdate(0), lambda: UntilSettled(0.0),
                                  lambda: UntilSettled(every=-1),
                                  lambda: UntilSettled(growth=0.0)])  # fmt: skip
def test_schedules_refuse_numbers_that_are_not_positive(make):
    with pytest.raises(InvalidDataError, match="must be"):
        make()


def test_how_far_an_update_moves_the_hyperparameters_is_in_units_of_their_width(data):
    X, Y = data
    model = regressor(pseudo_points=EVERY_INPUT)
    before = model.hyperparameter_posterior.mean
    model.update((X, Y))
    q = model.hyperparameter_posterior
    shift = np.sqrt(np.mean((q.mean - before) ** 2 / q.variance))
    np.testing.assert_allclose(model.state.shift, shift, rtol=ALGEBRA)
