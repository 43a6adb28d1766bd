"""scikit-learn estimators over :class:`~streaming_gp.StreamingGP`; needs the ``sklearn`` extra."""

from streaming_gp.estimators.base import default_kernel
from streaming_gp.estimators.sklearn import (
    BATCH_SIZE,
    StreamingGPClassifier,
    StreamingGPRegressor,
)

__all__ = [
    "BATCH_SIZE",
    "StreamingGPClassifier",
    "StreamingGPRegressor",
    "default_kernel",
]
