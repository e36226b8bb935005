"""Programs on GPUs (and, for tests, CPUs) through tinygrad.

Only ``adapter`` imports tinygrad; ``environment``, ``sizes`` and ``pieces`` can be imported anywhere.
"""
