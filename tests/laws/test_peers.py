"""PVI without a server is sequential PVI."""

import numpy as np
import pytest

from streaming_gp import datasets, linear, pvi
from streaming_gp.errors import ImproperError, InvalidDataError
from streaming_gp.expfam import Factor
from tests.conftest import ALGEBRA, THROUGH_CHOLESKY
from tests.oracles.reference import assert_same, labelled_data, pooled, regression_data

RULE = pvi.VariationalUpdate(epochs=3, batch_size=7, learning_rate=0.05)


def test_peers_go_where_sequential_pvi_goes_visit_by_visit(rng):
    """With a rule that draws minibatches, and with damping."""
    model = linear.logistic_regression(3)
    shards = datasets.partition_iid(*labelled_data(rng), 3)
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, RULE), seed=4)
    peers = pvi.make_peers(model, shards, RULE, damping=0.7, seed=4)
    baton = pvi.Baton(model.prior())
    for number in range(6):
        name = f"c{number % 3}"
        pvi.fit(server, pvi.Sequential([name], damping=0.7))
        baton = peers[number % 3].visit(baton)
        assert_same(baton.posterior, server.posterior, THROUGH_CHOLESKY)
        assert_same(peers[number % 3].own, server.factors[name], THROUGH_CHOLESKY)


def test_of_a_conjugate_model_one_round_is_exact_and_a_second_changes_nothing(rng):
    (X, Y), model = regression_data(rng), linear.BayesianLinearRegression(3, 0.09)
    shards = datasets.partition_iid(X, Y, 4)
    for rounds in (1, 2):
        peers = pvi.make_peers(model, shards, pvi.AnalyticUpdate())
        baton = pvi.pass_around(model.prior(), peers, rounds)
        assert baton.visits == 4 * rounds
        assert_same(baton.posterior, pooled(model, X, Y), ALGEBRA)


def test_a_visit_that_ends_at_no_distribution_leaves_the_peer_as_it_was(rng):
    class Broken:
        """Takes all precision away, the second time."""

        times = 0

        def __call__(self, task):
            self.times += 1
            factor = task.posterior.as_factor() ** (1.0 if self.times == 1 else -2.0)
            return pvi.LocalResult(Factor(factor.family, factor.natural))

    model = linear.logistic_regression(3)
    (peer,) = pvi.make_peers(model, [labelled_data(rng)], Broken())
    baton = peer.visit(pvi.Baton(model.prior()))
    before = peer.own
    with pytest.raises(ImproperError):
        peer.visit(baton)
    assert peer.own is before


def test_peers_that_have_begun_and_none_at_all_are_refused(rng):
    model = linear.BayesianLinearRegression(3, 0.09)
    peers = pvi.make_peers(model, [regression_data(rng)], pvi.AnalyticUpdate())
    pvi.pass_around(model.prior(), peers)
    for wrong in ([], peers):
        with pytest.raises(InvalidDataError, match="none of which has a factor"):
            pvi.pass_around(model.prior(), wrong)
    with pytest.raises(InvalidDataError, match="damping"):
        pvi.make_peers(model, [regression_data(rng)], pvi.AnalyticUpdate(), damping=np.nan)
