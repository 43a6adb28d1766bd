"""Experiments of the papers and of the measured pages: ``python -m experiments.papers.banana``.

They have the options of the examples, from ``examples/common.py``.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
