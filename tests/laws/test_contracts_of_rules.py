"""Every built-in update rule passes the check that rules of one's own are checked by."""

from dataclasses import dataclass, replace

import pytest

from streaming_gp import pvi, samplers, testing
from streaming_gp.expfam import Factor, MeanFieldNormal
from streaming_gp.testing.problem import regression


def slow(one):
    return pytest.param(one, marks=pytest.mark.slow)


LBFGS = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
SGLD = samplers.AdaptiveSGLD(0.02, 4)
EXACT = [
    pvi.AnalyticUpdate(),
    pvi.FixedPointUpdate(),
    slow(pvi.FixedPointUpdate(steps=3, damping=0.5)),
    LBFGS,
    slow(pvi.PowerEPUpdate(sweeps=4)),
    pvi.PowerEPUpdate(alpha=0.5, sweeps=2, damping=1.0, sequential=True),
    pvi.StochasticEPUpdate(),
    pvi.StochasticNaturalGradientUpdate(batch_size=None),
]
NUTS = samplers.NUTS(8)
SAMPLED_AND_APPROXIMATE = [
    pvi.FixedPointUpdate(batch_size=4),
    pvi.StochasticNaturalGradientUpdate(4),
    slow(pvi.VariationalUpdate(epochs=2, batch_size=4)),
    slow(pvi.VariationalUpdate(optimiser=pvi.SGD())),
    pvi.AssumedDensityUpdate(),
    pvi.DistributedEPUpdate(pvi.AnalyticUpdate()),
    pvi.SNEPUpdate(SGLD, sync=3),
    slow(pvi.MomentSharingUpdate(NUTS)),
    pvi.SplitPriorUpdate(LBFGS, 0.5),
]
MEAN_FIELD = [
    pvi.VariationalUpdate(optimiser=pvi.VariationalOnlineNewton()),
    slow(pvi.AveragingUpdate(0.5, pvi.VariationalUpdate())),
    pvi.DownpourUpdate(sync=2),
    pvi.ElasticUpdate(sync=2),
]


def name_of(rule):
    return type(rule).__name__


@pytest.mark.parametrize("rule", EXACT, ids=name_of)
def test_rules_that_are_exact_find_the_exact_posterior(rule):
    testing.check_update_rule(rule, tolerance=1e-5)


@pytest.mark.parametrize("rule", SAMPLED_AND_APPROXIMATE, ids=name_of)
def test_other_rules_answer_as_the_loop_expects(rule):
    testing.check_update_rule(rule)


@pytest.mark.parametrize("rule", MEAN_FIELD, ids=name_of)
def test_rules_for_mean_fields_answer_as_the_loop_expects(rule):
    testing.check_update_rule(rule, regression(MeanFieldNormal))


@dataclass(frozen=True)
class Wrong:
    """A rule that does one thing wrong."""

    how: str

    def __call__(self, task):
        result = pvi.AnalyticUpdate()(task)
        if self.how == "another family":
            return replace(result, factor=Factor(MeanFieldNormal, result.factor.natural))
        if self.how == "in place":
            task.data[1][:] = 0.0
        if self.how == "double":
            return replace(result, factor=result.factor**2.0)
        if self.how == "silent":
            return result.factor
        return result


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("another family", "a factor of the prior's family: it is no factor"),
        ("in place", "a rule leaves the task as it was"),
        ("double", "finds the exact posterior"),
        ("silent", "gives a LocalResult"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said(how, sentence):
    with pytest.raises(AssertionError, match=sentence):
        testing.check_update_rule(Wrong(how), tolerance=1e-6)


def test_a_rule_that_answers_nothing_is_none():
    with pytest.raises(AssertionError, match="answers the first question"):
        testing.check_update_rule(pvi.ElasticUpdate())
