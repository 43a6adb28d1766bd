"""Clients with parameters of their own beside the shared ones."""

from streaming_gp.pvi.personal.model import PersonalModel
from streaming_gp.pvi.personal.update import PersonalUpdate

__all__ = ["PersonalModel", "PersonalUpdate"]
