"""Experiments of the papers, with their numbers and figures."""
