"""``streaming-gp``: streams of CSV files without a program."""

from streaming_gp.command_line.main import main

__all__ = ["main"]
