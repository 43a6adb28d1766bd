"""Streaming methods side by side: this package's strategies, and others, on the same streams."""
