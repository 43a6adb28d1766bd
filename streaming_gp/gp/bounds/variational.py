"""The variational bound (Titsias 2009), with a cavity in the prior's place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from streaming_gp.gp.bounds.base import expected_log_likelihood
from streaming_gp.gp.bounds.problem import LocalModel, Problem
from streaming_gp.gp.bounds.sites import Sites
from streaming_gp.gp.bounds.sparse import SparseBound
from streaming_gp.gp.bounds.whitening import PointPosterior, ProjectedData, posterior_at_data
from streaming_gp.serialization import storable


@storable
@dataclass(frozen=True)
class Variational(SparseBound):
    """``F = Σ_n E_q[log p(y_n | f_n)] − KL(q(b) ‖ p̃(b))``.

    With the exact sites of a Gaussian likelihood this is Titsias' collapsed bound.
    """

    is_evidence_bound: ClassVar[bool] = True

    def expected(
        self,
        local: LocalModel,
        data: ProjectedData,
        sites: Sites,
        c: PointPosterior,
        problem: Problem,
    ) -> tf.Tensor:
        return expected_log_likelihood(local, posterior_at_data(local.gp, data, c), problem)
