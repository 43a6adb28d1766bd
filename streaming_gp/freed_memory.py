"""Memory that is freed is kept for the next array.

The GNU C library gives free memory at the end of its heap back to the system, and serves large
arrays by pages of their own, until a process has freed a large block (mallopt(3),
M_MMAP_THRESHOLD). A fit whose stacks of matrices have a few megabytes each would spend much of its
time on getting the same pages again and again.
"""

from __future__ import annotations

import numpy as np

LARGEST = 31 * 2**20
"""In bytes: a little less than the largest block from which the library learns."""


def keep_freed_memory() -> None:
    """Free a large block, of which no page was ever touched."""
    np.empty(LARGEST, np.uint8)
