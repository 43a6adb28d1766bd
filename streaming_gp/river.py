"""river estimators over :class:`~streaming_gp.StreamingGP`; needs the ``river`` extra."""

from streaming_gp.estimators.river import StreamingGPClassifier, StreamingGPRegressor

__all__ = ["StreamingGPClassifier", "StreamingGPRegressor"]
