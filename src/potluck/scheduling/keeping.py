"""Which cache blocks the stages are to keep on disk, and which they are to put back."""

from __future__ import annotations

MAX_MOVED_BLOCKS = 8
"""That one step restores from the disk of every stage, or saves there beyond what a step computes.
Steps of others wait meanwhile: 4 MiB for a 1B model, some 5 ms from the page cache."""
