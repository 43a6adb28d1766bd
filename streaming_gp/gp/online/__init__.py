"""One point at a time: predictions and updates in a fraction of a millisecond."""

from streaming_gp.gp.online.change import Alarm
from streaming_gp.gp.online.gp import OnlineGP

__all__ = ["Alarm", "OnlineGP"]
