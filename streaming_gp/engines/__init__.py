"""Where clients run: in this process, or on a Ray cluster."""

from streaming_gp.engines.ray import Ray
from streaming_gp.pvi.engine import Delivery, Engine, Session
from streaming_gp.pvi.serial import Serial

__all__ = ["Delivery", "Engine", "Ray", "Serial", "Session"]
