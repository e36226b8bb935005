"""Errors of files that no command expects."""

from __future__ import annotations

import errno
import os

import pytest

from potluck.cli import main as module


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some disk space, or write to another location"),
        (errno.EACCES, "check the path and its permissions"),
        (errno.ENOENT, "check the path and its permissions"),
    ],
)
def test_the_hint_suits_the_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int, hint: str
) -> None:
    def fail(_: list[str]) -> int:
        raise OSError(number, os.strerror(number), "/some/file")

    monkeypatch.setattr(module, "_run", fail)
    monkeypatch.setattr(module, "_discard_output", lambda: None)
    with pytest.raises(SystemExit) as ended:
        module.main(["cache"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"potluck: /some/file: {os.strerror(number)}\nhint: {hint}\n"
    )
