"""Lets these tests import ``tools`` and the modules of ``benchmarks``, which are no packages."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]

sys.path += [str(_ROOT), str(_ROOT / "benchmarks")]
