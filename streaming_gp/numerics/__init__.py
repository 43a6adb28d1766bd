"""Linear algebra, quadrature, random numbers and threads: what every room computes with."""
