"""Local fits of a free energy: exact, by an optimiser, or by natural gradients."""
