"""Gradients of the bounds with a free-form q(b | a), which need not pass through it at its best."""

import gpflow
import numpy as np
import pytest
import tensorflow as tf

import streaming_gp as sgp
from streaming_gp.gp import Conditional
from streaming_gp.gp.bounds import Sites
from streaming_gp.gp.bounds.independent import Independent
from streaming_gp.gp.fitting.bound_functions import BoundFunctions
from tests.oracles.builders import kernel, mean_of_two
from tests.oracles.problems import COLUMNS, known_points, model_of_columns, problem_of
from tests.oracles.reference import smooth_data

LEARNED = sgp.VariationalHyperparameters()
CLASSES = gpflow.likelihoods.Softmax(COLUMNS)


def labelled_model(pseudo_points):
    """Two latent functions that share a kernel, in two groups."""
    return sgp.StreamingGP(
        kernel(), CLASSES, mean_of_two(), pseudo_points=pseudo_points, hyperparameters=LEARNED
    )


@pytest.mark.parametrize(
    ("bound", "pseudo_points"),
    [
        (Conditional(), sgp.ConditionalPseudoPoints(6)),
        (Independent(), sgp.IndependentPseudoPoints(6)),
    ],
    ids=["conditional", "independent"],
)
@pytest.mark.parametrize(
    ("build", "groups"),
    [
        (lambda points: model_of_columns(points, LEARNED, 1), 1),
        (lambda points: model_of_columns(points, LEARNED, COLUMNS), COLUMNS),
        (labelled_model, COLUMNS),
    ],
    ids=["one group", "two groups", "labels"],
)
def test_gradients_are_those_of_finite_differences(rng, build, groups, bound, pseudo_points):
    X, Y = smooth_data(rng, 8, COLUMNS)
    model = build(pseudo_points)
    outputs = 1 if model.likelihood is CLASSES else COLUMNS
    local = model._compile(2, outputs).local
    problem = problem_of(
        local,
        (X, (Y[:, :1] > 2.0) + 0.0 if outputs == 1 else Y),
        known_points(rng, 3, groups),
        rng,
        num_points=2,
    )
    E = local.parameters.size
    problem = problem._replace(
        scale=tf.constant(0.3 * np.eye(E)), noise=tf.constant(rng.standard_normal((2, E)))
    )
    sites = Sites(
        *map(tf.constant, (rng.standard_normal((8, COLUMNS)), rng.uniform(0.5, 2.0, (8, COLUMNS))))
    )
    functions = BoundFunctions(bound, local)
    offsets = np.zeros(4)
    variables = 0.1 * rng.standard_normal(2 * E)

    def loss(point):
        return functions.objective(point[:4], point[4:], problem, sites, True)

    point = np.concatenate([offsets, variables])
    _, gradient = loss(point)
    numeric = [
        (loss(point + step)[0] - loss(point - step)[0]) / 2e-5 for step in 1e-5 * np.eye(len(point))
    ]
    assert np.abs(gradient).max() > 0.1
    np.testing.assert_allclose(gradient, numeric, rtol=1e-5, atol=1e-6)
