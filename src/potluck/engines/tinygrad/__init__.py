"""Programs on GPUs (and, for tests, CPUs) through tinygrad.

Only ``adapter`` imports tinygrad; ``environment``, ``sizes``, ``layout``, ``backend``
and ``pieces`` can be imported anywhere.
"""
