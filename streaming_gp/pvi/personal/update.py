"""The rule of clients with parameters of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from streaming_gp import serialization
from streaming_gp.errors import InvalidDataError
from streaming_gp.expfam import Factor
from streaming_gp.inputs import require_count
from streaming_gp.pvi.personal.blocks import embedded, marginal
from streaming_gp.pvi.personal.model import PersonalModel
from streaming_gp.pvi.task import LocalResult, LocalTask, UpdateRule, factor_of

KIND = "what a client keeps to itself"


@dataclass(frozen=True)
class PersonalUpdate:
    """Fit shared and personal parameters together; answer with the factor of the shared ones.

    The client's cavity is that of θ times the prior of its own z. The rule fits q(θ, z) under it,
    and the answer is ``∫ q(θ, z) dz`` over the cavity of θ. What is personal is no part of any
    message. It is fitted anew at each visit, from where the last one left it, if that is kept.

    :param rule: The rule that fits both.
    :param folder: Where a client keeps q(θ, z), in a file of its name at its own place. Without it
        every visit fits z from where the model starts, and nothing is kept to predict with.
    :param seed: The seed of where z starts.
    :raises InvalidDataError: when it is asked, if the model is no ``PersonalModel``.
    """

    rule: UpdateRule
    folder: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_count("seed", self.seed)

    def __call__(self, task: LocalTask) -> LocalResult:
        """Answer; what is personal stays."""
        model = task.model
        if not isinstance(model, PersonalModel):
            raise InvalidDataError(
                f"PersonalUpdate is for a PersonalModel, got a {type(model).__name__}"
            )
        joint = self._joint(task, model)
        found = self.rule(joint)
        q = (joint.cavity * found.factor).normalised().as_arrays()
        if self.folder is not None:
            path = self._path(task.client_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            serialization.write(path, KIND, q, serialization.registered_classes())
        shared = marginal(q, model.shared)
        return replace(found, factor=factor_of(shared, task.cavity, found.free_energy))

    def kept(self, client_id: str) -> Any:
        """The client's newest q(θ, z) of all D parameters; None before its first visit.

        :raises FileFormatError: if the file is damaged or foreign.
        """
        if self.folder is None or not self._path(client_id).exists():
            return None
        classes = serialization.registered_classes()
        return serialization.read(self._path(client_id), KIND, classes)

    def _joint(self, task: LocalTask, model: PersonalModel) -> LocalTask:
        """The question as one of all D parameters."""
        own = marginal(model.model.prior(), model.personal).as_factor()
        kept = self.kept(task.client_id)
        z = marginal(model.model.initial(self.seed) if kept is None else kept, model.personal)

        def joined(shared: Factor, personal: Factor) -> Any:
            both = _placed(shared, model.shared, model) * _placed(personal, model.personal, model)
            return both.normalised().as_arrays()

        return replace(
            task,
            model=model.model,
            posterior=joined(task.posterior.as_factor(), own),
            own=None if task.own is None else _placed(task.own, model.shared, model),
            start=joined(task.start.as_factor(), z.as_factor()),
            given_prior=joined(task.prior.as_factor(), own),
        )

    def _path(self, client_id: str) -> Path:
        return Path(self.folder or "") / f"{quote(client_id, safe='')}.npz"


def _placed(factor: Factor, coordinates: Any, model: PersonalModel) -> Factor:
    return embedded(factor.as_arrays(), coordinates, model.size)
