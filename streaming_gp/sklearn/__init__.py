"""scikit-learn estimators over :class:`~streaming_gp.StreamingGP`."""

from streaming_gp.defaults import default_kernel, default_pseudo_points
from streaming_gp.sklearn.base import BATCH_SIZE
from streaming_gp.sklearn.classifier import StreamingGPClassifier
from streaming_gp.sklearn.regressor import StreamingGPRegressor

__all__ = [
    "BATCH_SIZE",
    "StreamingGPClassifier",
    "StreamingGPRegressor",
    "default_kernel",
    "default_pseudo_points",
]
