"""Options that all commands read in the same way."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.cli.main import main


@pytest.mark.parametrize("option", ["--state", "--secret-file"])
def test_a_path_that_is_empty_is_not_the_current_folder(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["up", option, "", "--lan", "--join", "10.0.0.5"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"potluck: {option} is empty\nhint: omit it, or give a path\n"
    assert list(tmp_path.iterdir()) == []
