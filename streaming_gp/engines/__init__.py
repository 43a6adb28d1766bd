"""Where clients run: in this process, on a Ray cluster, or in other organisations."""

from streaming_gp.engines.flower import Flower
from streaming_gp.engines.nvflare import NVFlare
from streaming_gp.engines.ray import Ray
from streaming_gp.pvi.engine import Engine, Serial, Session
from streaming_gp.pvi.task import Delivery

__all__ = ["Delivery", "Engine", "Flower", "NVFlare", "Ray", "Serial", "Session"]
