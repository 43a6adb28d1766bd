"""river estimators over :class:`~streaming_gp.StreamingGP`; needs the ``river`` extra."""

from streaming_gp.river.classifier import StreamingGPClassifier
from streaming_gp.river.regressor import StreamingGPRegressor

__all__ = ["StreamingGPClassifier", "StreamingGPRegressor"]
