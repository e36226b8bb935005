"""Programs on GPUs (and, for tests, CPUs) through tinygrad.

Only ``adapter`` imports tinygrad; ``environment``, ``libraries``, ``sizes``, ``layout``, ``costs``
and ``pieces`` can be imported anywhere.
"""
