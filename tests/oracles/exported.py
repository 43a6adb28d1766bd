"""Files of a predictor that no model was trained for."""

import numpy as np

from streaming_gp.runtime import Description
from streaming_gp.runtime.predictor import Draw, ExportedGP


def small(kernel="SquaredExponential", likelihood="Gaussian"):
    """One observation of precision 3 of f(0) under a kernel of variance 1: y = 2 / √3."""
    one = np.ones(())
    draw = Draw(
        kernels=(Description(kernel, {"variance": one, "lengthscales": one}),),
        mean_function=Description("Zero"),
        likelihood=Description(likelihood, {"variance": 0.5 * one}),
        precision_factor=(np.full((1, 1), np.sqrt(3.0)),),
        targets=np.full((1, 1, 1), 2.0),
        nugget=np.zeros(1),
    )
    return ExportedGP(np.zeros((1, 1)), (draw,))
