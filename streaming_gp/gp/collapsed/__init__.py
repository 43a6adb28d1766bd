"""Bounds whose q(f) is known in closed form, by Gaussian noise or at given sites, with gradients.

A fit asks for a bound hundreds of times. What TensorFlow is needed for are the prior at each ε, the
expected log likelihood, and their gradients; the linear algebra between them is written out here,
forwards and backwards, on BLAS and LAPACK.
"""
