"""Data for the examples, found or fetched.

A file is looked for in the folder that is passed, then in ``$STREAMING_GP_DATA``, then among the
files that ship with the package, then in the user's cache; what is found nowhere is downloaded into
the cache. Every file but the user's own is held to a pinned checksum.
"""

from streaming_gp.datasets.files import DATA_VARIABLE, DataNotFoundError, Split, find
from streaming_gp.datasets.images import (
    load_cifar10,
    load_fashion_mnist,
    load_kuzushiji49,
    load_mnist,
)
from streaming_gp.datasets.partitions import (
    partition_by_dirichlet,
    partition_by_label,
    partition_iid,
)
from streaming_gp.datasets.robot_arm import load_robot_arm
from streaming_gp.datasets.splits import UCI_NAMES, load_banana, load_uci

__all__ = [
    "DATA_VARIABLE",
    "UCI_NAMES",
    "DataNotFoundError",
    "Split",
    "find",
    "load_banana",
    "load_cifar10",
    "load_fashion_mnist",
    "load_kuzushiji49",
    "load_mnist",
    "load_robot_arm",
    "load_uci",
    "partition_by_dirichlet",
    "partition_by_label",
    "partition_iid",
]
