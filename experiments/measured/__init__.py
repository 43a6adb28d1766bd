"""Experiments of the measured pages."""
