"""What estimators take where nothing is said."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

import gpflow
import numpy as np

from streaming_gp.gp import PrivatePseudoPoints


def default_kernel(num_inputs: int) -> gpflow.kernels.Kernel:
    """A squared exponential over standardised inputs, one lengthscale for each.

    They start at ``√D 10^(−1/D)``: the edge of one of ten like cells that share the spread of the
    data. In one dimension that is a tenth of a standard deviation; in many it nears √D, the length
    of a typical input. Automatic pseudo-points are placed by this start, so that too long a one
    leaves a rough function with too few.

    :param num_inputs: The number of inputs D.
    """
    start = np.sqrt(num_inputs) * 10.0 ** (-1.0 / num_inputs)
    with logarithmic_parameters():
        return gpflow.kernels.SquaredExponential(lengthscales=np.full(num_inputs, start))


def default_pseudo_points(num_rows: int) -> PrivatePseudoPoints:
    """For each batch as many as raise the bound noticeably, up to a quarter of its data points.

    Up to 30 in any batch, however, and never more than 100; earlier ones are projected onto fewer
    where all together would exceed 300.

    :param num_rows: The number of rows of the first batch.
    """
    return PrivatePseudoPoints("auto", max_number=int(np.clip(num_rows // 4, 30, 100)), budget=300)


def logarithmic_parameters() -> AbstractContextManager[None]:
    """Positive GPflow parameters that are made within have an exponential transform.

    GPflow's default, TFP's softplus, registers a gradient with TensorFlow whenever it is traced,
    and that keeps the graphs of every model ever fitted: too many in a cross-validation.
    """
    return gpflow.config.as_context(replace(gpflow.config.config(), positive_bijector="exp"))
