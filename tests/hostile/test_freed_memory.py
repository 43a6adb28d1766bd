"""Memory that was freed serves the next array, and is not asked of the system again."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import numpy as np
from streaming_gp.numerics.threads import keep_freed_memory

keep_freed_memory()


def several_at_once():
    return [np.ones((4, 240, 240)) for _ in range(5)]


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


several_at_once()
before = faults()
for _ in range(100):
    several_at_once()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library alone")
def test_pages_of_arrays_are_used_again():
    """In a process of its own, as it is enough to have freed such a block once."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 100
