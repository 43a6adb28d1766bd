"""A small problem with a known answer, for checks of rules, schedules and engines."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streaming_gp.expfam import Gaussian, Normal
from streaming_gp.linear import BayesianLinearRegression
from streaming_gp.pvi.client import Client, make_clients
from streaming_gp.pvi.model import Data
from streaming_gp.pvi.server import Server
from streaming_gp.pvi.task import UpdateRule
from streaming_gp.pvi.updates.fixed_point import AnalyticUpdate

NOISE_VARIANCE = 0.1


def regression(family: type[Gaussian] = Normal) -> BayesianLinearRegression:
    """Linear regression with two weights, whose posterior is of this family."""
    return BayesianLinearRegression(2, NOISE_VARIANCE, family=family)


def shards_of_regression(number: int = 3, num_data: int = 8) -> list[Data]:
    """Data of each client: X [N, 2] and Y [N, 1].

    Inputs are ±1 and orthogonal within every shard, so that the mean field is exact.

    :param number: The number of clients.
    :param num_data: The number of data points of each, even.
    """
    rng = np.random.default_rng(0)
    X = np.tile([[1.0, 1.0], [1.0, -1.0]], (num_data // 2, 1))
    noise = np.sqrt(NOISE_VARIANCE) * rng.standard_normal((number, num_data, 1))
    return [(X, X @ np.array([[1.0], [-0.5]]) + one) for one in noise]


def clients_of_regression(
    model: BayesianLinearRegression, update: UpdateRule | None = None
) -> Mapping[str, Client]:
    """Clients c0, c1 and c2, which answer by the exact update if no other is given."""
    return make_clients(model, shards_of_regression(), update or AnalyticUpdate())


def server_of_regression(
    update: UpdateRule | None = None, family: type[Gaussian] = Normal
) -> Server:
    """A server of such clients."""
    model = regression(family)
    return Server(model.prior(), clients_of_regression(model, update))
