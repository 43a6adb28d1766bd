"""Each clinic runs this: python clinic.py clinic-a patients.csv."""

import sys

import numpy as np
from agreed import site

from streaming_gp import engines, pvi

name, path = sys.argv[1:]


def load():
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    return rows[:, :-1], rows[:, -1:]  # inputs, and labels 0 or 1


pvi.serve(site(name, load), engines.Flower("127.0.0.1:9094", f"{name}.secret"))
