"""Trees of plain values in one file: frozen dataclasses, tuples, dicts, arrays and numbers.

A file is an npz archive without pickles. Its entry ``header`` is JSON that says what the file is
and spells out the tree; every array of the tree is an entry of its own. The archive's comment is
the SHA-256 of all bytes before it, so that a file of which one bit has changed is refused. Whenever
the writing process dies, the file is there as a whole or not at all.

An explicit mapping ``{name: class}`` says which classes may occur; :func:`registered_classes` is
the one that models and servers use, and :func:`storable` puts a class of one's own into it. A file
cannot make anything else be imported or called.
"""

from streaming_gp.serialization.files import (
    FORMAT,
    VERSION,
    PathLike,
    as_path,
    digest,
    leftovers,
    packed,
    read,
    read_bytes,
    replacing,
    unpacked,
    write,
    write_bytes,
    write_new,
)
from streaming_gp.serialization.trees import Classes, decode, encode, registered_classes, storable

__all__ = [
    "FORMAT",
    "VERSION",
    "Classes",
    "PathLike",
    "as_path",
    "decode",
    "digest",
    "encode",
    "leftovers",
    "packed",
    "read",
    "read_bytes",
    "registered_classes",
    "replacing",
    "storable",
    "unpacked",
    "write",
    "write_bytes",
    "write_new",
]
