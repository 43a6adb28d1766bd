"""A model of which the server knows a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.model import Data, Model
from streaming_gp.pvi.personal.blocks import embedded, marginal, require_blocks


class PersonalModel:
    """A model whose parameters are shared, but for some that every client has to itself.

    With θ shared and z_k the client's own, client k has of θ the likelihood
    ``∫ p(y_k | θ, z_k) p(z_k) dz_k``: partitioned variational inference with local latent
    variables.
    Server, checks, files and messages are of θ alone. Clients answer by :class:`PersonalUpdate`.

    :param model: The model of all D parameters; its prior is Gaussian, with θ and z independent.
    :param personal: Which of them are personal: their numbers, or [D] true and false. Of a
        network's last layer ``net.layer_of_weights == net.layer_of_weights.max()``.
    :raises InvalidDataError: if none or all of them are, or the prior is not of that kind.
    """

    def __init__(self, model: Model, personal: Sequence[int] | np.ndarray) -> None:
        prior = model.prior()
        require_blocks(prior)
        size = len(prior.precision_mean)
        is_personal = np.zeros(size, bool)
        try:
            is_personal[np.asarray(personal)] = True
        except IndexError as error:
            raise InvalidDataError(f"personal must be among {size} parameters: {error}") from error
        if is_personal.all() or not is_personal.any():
            raise InvalidDataError(f"wanted some of {size} parameters, got {personal!r}")
        self.model, self.size = model, size
        self.shared, self.personal = np.flatnonzero(~is_personal), np.flatnonzero(is_personal)
        if prior.precision.ndim == 2 and np.any(prior.precision[np.ix_(~is_personal, is_personal)]):
            raise InvalidDataError(
                "shared and personal parameters depend on one another in the prior"
            )

    def prior(self) -> Any:
        """p(θ)."""
        return marginal(self.model.prior(), self.shared)

    def initial(self, seed: int) -> Any:
        """The model's own start, of θ."""
        return marginal(self.model.initial(seed), self.shared)

    def as_data(self, X: Any, Y: Any) -> Data:
        """As the model's own."""
        return self.model.as_data(X, Y)

    def joined(self, posterior: Any, kept: Any) -> Any:
        """What one client knows of all D parameters: ``q(θ) q(z | θ)``.

        :param posterior: q(θ), as the server has it.
        :param kept: The client's newest posterior of all D, as :meth:`PersonalUpdate.kept` has it.
        """
        news = posterior.as_factor() / marginal(kept, self.shared).as_factor()
        joint = kept.times([embedded(news.as_arrays(), self.shared, self.size)])
        return joint.as_arrays()
