"""Linear models with Gaussian weights: conjugate regression, and any likelihood on a linear
predictor.
"""

from streaming_gp.linear.gp_on_inputs import GPOnInputs
from streaming_gp.linear.models import (
    BayesianLinearRegression,
    GeneralisedLinearModel,
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
