"""Expectation propagation and its relatives."""
