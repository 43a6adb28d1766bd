"""Whether a ledger from elsewhere can be a model's own."""

from __future__ import annotations

from streaming_gp.errors import InvalidDataError
from streaming_gp.gp.fitting.projection import GPLedger
from streaming_gp.gp.process.process import Process
from streaming_gp.inputs import as_name
from streaming_gp.pvi.ledger import Ledger


def refuse_foreign(ledger: GPLedger, prior: Process) -> None:
    """Refuse a ledger that is none of a model with this prior."""
    if not isinstance(ledger, Ledger):
        raise InvalidDataError(f"wanted a ledger, got a {type(ledger).__name__}")
    for name in ledger.factors:
        as_name("the name of a factor", name)
    if ledger.prior.form != prior.form:
        raise InvalidDataError(
            f"wanted a ledger of a {prior.form}, got one of a {ledger.prior.form}"
        )
    for name, factor in ledger.factors.items():
        objection = prior.objection_to(factor)
        if objection is not None:
            raise InvalidDataError(f"factor {name!r} is none of this model: {objection}")


def refuse_sizes(process: Process, sizes: tuple[int, ...]) -> None:
    """Refuse a process with other input columns, groups or columns of a group."""
    found = {one.sizes for one in process.pseudo_observations} - {sizes}
    if found:
        raise InvalidDataError(
            "wanted pseudo-observations with input columns, groups and columns of a group "
            f"{sizes}, got {sorted(found)}"
        )
