"""Programs on GPUs (and, for tests, CPUs) through tinygrad.

Only ``adapter`` imports tinygrad; ``layout``, ``backend`` and ``pieces`` can be imported anywhere.
"""
