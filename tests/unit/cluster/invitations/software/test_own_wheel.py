"""Which wheels of Potluck are those of the node that runs here."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import potluck
from potluck.cluster.invitations.software import installed_wheel
from potluck.cluster.invitations.software.installed_wheel import (
    check_own_wheel,
    is_of_this_node,
    keep_wheels,
    own_wheels,
)
from potluck.errors import WheelFileError

NAME = f"potluck-{potluck.__version__}-cp312-abi3-manylinux_2_17_x86_64.whl"


def make_wheel(folder: Path, *, changed: bool = False) -> Path:
    folder.mkdir(exist_ok=True)
    package = Path(potluck.__file__).parent
    with zipfile.ZipFile(folder / NAME, "w") as archive:
        for path in package.rglob("*.py"):
            archive.write(path, f"potluck/{path.relative_to(package)}")
        if changed:
            archive.writestr("potluck/another.py", "")
    return folder / NAME


@pytest.fixture
def from_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    checkout = tmp_path / "checkout"
    monkeypatch.setattr(installed_wheel, "checkout", lambda: checkout)
    return checkout


@pytest.mark.slow
def test_the_sources_must_be_those_that_run(tmp_path: Path) -> None:
    assert is_of_this_node(make_wheel(tmp_path / "same"))
    assert not is_of_this_node(make_wheel(tmp_path / "other", changed=True))
    broken = tmp_path / NAME
    broken.write_bytes(b"no archive")
    assert not is_of_this_node(broken)


def test_a_checkout_without_wheels_says_what_to_do(from_checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(WheelFileError, match="there is no wheel of it") as refused:
        check_own_wheel([tmp_path])
    assert refused.value.hint.startswith(f"run make wheels in {from_checkout}, or name a folder")
    make_wheel(tmp_path / "other", changed=True)
    with pytest.raises(WheelFileError, match="built from other sources"):
        check_own_wheel([tmp_path / "other"])


@pytest.mark.slow
def test_wheels_are_found_in_folders_and_in_what_make_wheels_fills(
    from_checkout: Path, tmp_path: Path
) -> None:
    make_wheel(tmp_path / "wheels")
    check_own_wheel([tmp_path / "wheels"])
    from_checkout.mkdir()
    make_wheel(from_checkout / "dist")
    check_own_wheel([])


def test_wheels_are_kept_in_the_store(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "wheels")
    keep_wheels([tmp_path / "wheels"], tmp_path / "store")
    assert own_wheels([tmp_path / "store"]) == [tmp_path / "store" / NAME]
    assert (tmp_path / "store" / NAME).read_bytes() == wheel.read_bytes()
    (tmp_path / "empty").mkdir()
    with pytest.raises(WheelFileError, match="there is no wheel in it"):
        keep_wheels([tmp_path / "empty"], tmp_path / "store")
