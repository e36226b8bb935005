"""The process that asks the index may end at any time."""

from __future__ import annotations

import shutil
import sys

import pytest

from potluck.errors import WheelDownloadError
from potluck.portability.planning.pip_index import PipIndex


def test_a_process_that_ended_before_it_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    index = PipIndex()
    index._process.wait()
    with pytest.raises(WheelDownloadError, match="pip exited: without an error message"), index:
        index.files("app")
