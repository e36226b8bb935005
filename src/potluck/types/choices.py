"""Choices in settings and requests, and their defaults.

This module imports nothing else, since every command reads the settings.
"""

from __future__ import annotations

import enum

NGRAM = "ngram"
OFF = "off"
DEFAULT_DRAFT = NGRAM
"""The source of drafts: the text itself, or none. Any other value names a model."""

DEFAULT_NUM_STREAMS = 8

DEFAULT_REBALANCE_THRESHOLD = 0.2
"""The minimum gain, relative to the current speed, at which a deployment moves."""


class Objective(enum.Enum):
    """The objective of plans."""

    LATENCY = "latency"
    """The least time per token of one stream."""
    THROUGHPUT = "throughput"
    """The most tokens per second of several streams together."""
    MEMORY = "memory"
    """Every unit filled in proportion to its memory, so that the maximum fill level is minimal."""


class Rebalance(enum.Enum):
    """Whether a deployment moves when a much better plan is found."""

    AUTO = "auto"
    ASK = "ask"
    """The better plan is shown; ``potluck rebalance`` carries it out."""
    NEVER = "never"


class ArithmeticChoice(enum.Enum):
    """The user's choice: bit-identical results on every CPU, or the fastest matrix products."""

    EXACT = "exact"
    FAST = "fast"


class Quantization(enum.Enum):
    """The mixtures of formats by name, the most precise first (``types.quantization``)."""

    NONE = "none"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q4_K = "q4_k"
    IQ4_NL = "iq4_nl"
    Q4_0 = "q4_0"
    Q3_K = "q3_k"
