"""Regressors and classifiers over :class:`~streaming_gp.StreamingGP`, one for each interface.

``streaming_gp.sklearn`` and ``streaming_gp.river`` are where users find them; neither needs the
other's library. Tables and the command line share their defaults.
"""
