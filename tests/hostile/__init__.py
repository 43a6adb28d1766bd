"""What a model that runs for months meets: bad input, other threads, interrupts, broken clients and
files. Each case has one expectation: one clear error and everything unchanged bit for bit, or the
right answer.
"""
