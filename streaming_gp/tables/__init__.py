"""Data with named columns: frames, files in chunks, and a model that knows the names."""

from streaming_gp.frames.files import read_arrow, read_csv
from streaming_gp.tables.model import TableGP
from streaming_gp.tables.sources import StreamReport, stream

__all__ = [
    "StreamReport",
    "TableGP",
    "read_arrow",
    "read_csv",
    "stream",
]
