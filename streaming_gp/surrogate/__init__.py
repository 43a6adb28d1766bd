"""A streaming GP as the surrogate of Bayesian optimisation and active learning.

The methods are those that Trieste asks of a model (Picheny et al. 2023), which asks by structure:
``TrainableProbabilisticModel``, ``SupportsPredictJoint``, ``SupportsPredictY`` and
``FastUpdateModel``. Trieste itself is not needed.
"""

from streaming_gp.surrogate.rows import Dataset
from streaming_gp.surrogate.surrogate import StreamingSurrogate

__all__ = ["Dataset", "StreamingSurrogate"]
