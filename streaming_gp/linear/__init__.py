"""Linear models with Gaussian weights: conjugate regression, and any likelihood on a linear
predictor.
"""

from streaming_gp.linear.models import (
    BayesianLinearRegression,
    GeneralisedLinearModel,
    GPOnInputs,
    logistic_regression,
    probit_regression,
)

__all__ = [
    "BayesianLinearRegression",
    "GPOnInputs",
    "GeneralisedLinearModel",
    "logistic_regression",
    "probit_regression",
]
