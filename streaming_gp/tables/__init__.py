"""Data with named columns: frames, files in chunks, and a model that knows the names."""

from streaming_gp.tables.model import TableGP
from streaming_gp.tables.sources import StreamReport, read_arrow, read_csv, stream

__all__ = [
    "StreamReport",
    "TableGP",
    "read_arrow",
    "read_csv",
    "stream",
]
