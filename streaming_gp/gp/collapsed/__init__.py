"""Bounds whose q(f) is known in closed form, as the noise is Gaussian: values and gradients.

A fit asks for a bound hundreds of times. What TensorFlow is needed for is the prior at each ε, and
its gradient; the linear algebra between the prior and the bound is written out here, forwards and
backwards, on BLAS and LAPACK.
"""
