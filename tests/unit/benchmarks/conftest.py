"""Lets these tests import the modules of ``benchmarks``, which are no package, and ``tools``."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]

sys.path += [str(_ROOT), str(_ROOT / "benchmarks")]
