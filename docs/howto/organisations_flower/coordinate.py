"""The coordinator runs this: python coordinate.py. After a crash, again."""

import logging
from pathlib import Path

from agreed import PATIENTS, model, site

from streaming_gp import engines, pvi

ROUNDS, path = 20, Path("run.npz")
logging.basicConfig(filename="coordinator.log", level=logging.WARNING)

sites = {name: site(name) for name in PATIENTS}
if path.exists():
    server = pvi.Server.load(path, model.prior(), sites)
else:
    server = pvi.Server(model.prior(), sites)

left = ROUNDS - len(server.history)
if left > 0:
    keys = {name: f"{name}.pub" for name in PATIENTS}
    engine = engines.Flower("localhost:8000", "link.secret", "ca.pem", keys)
    history = pvi.fit(server, pvi.Synchronous(), left, engine, checkpoint=path)
    print(history[-1].failed, history[-1].refused)
print(server.posterior.mean)
