"""Wheels made of what is installed are those that it was installed from."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from potluck.cluster.invitations.software.installed_wheel import (
    checkout_of,
    installed_distribution,
    wheel_of_installed,
)
from potluck.errors import WheelFileError
from potluck.host.child_environment import child_environment

METADATA = "Metadata-Version: 2.1\nName: Some-Thing\nVersion: 1.2.0\nRequires-Dist: numpy\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
FILES = {
    "some_thing/__init__.py": b"VALUE = 42\n",
    "some_thing/data.bin": bytes(range(256)),
    "some_thing-1.2.0.data/scripts/some-script": b"#!python\nimport some_thing\n",
    "some_thing-1.2.0.dist-info/METADATA": METADATA.encode(),
    "some_thing-1.2.0.dist-info/WHEEL": WHEEL.encode(),
    "some_thing-1.2.0.dist-info/entry_points.txt": b"[console_scripts]\nsome-thing = some_thing:f",
}
NAME = "some_thing-1.2.0-py3-none-any.whl"


def digest(data: bytes) -> str:
    """As a RECORD has it."""
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def original(folder: Path) -> Path:
    path = folder / NAME
    folder.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in FILES.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(member, data)
        record = "".join(
            f"{name},sha256={digest(data)},{len(data)}\n" for name, data in FILES.items()
        )
        archive.writestr("some_thing-1.2.0.dist-info/RECORD", record)
    return path


def install(wheel: Path, prefix: Path) -> Distribution:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--isolated", "install", "--quiet", "--no-deps"),
            *("--no-index", "--prefix", str(prefix), "--ignore-installed", str(wheel)),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    (info,) = prefix.rglob("*.dist-info")
    return PathDistribution(info)


@pytest.fixture
def installed(tmp_path: Path) -> Distribution:
    return install(original(tmp_path / "original"), tmp_path / "installed")


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_it_has_the_same_files_under_the_same_name(installed: Distribution, tmp_path: Path) -> None:
    made = wheel_of_installed(installed, tmp_path / "made")
    assert made.name == NAME
    found = contents(made)
    found.pop("some_thing-1.2.0.dist-info/RECORD")
    assert found == FILES


@pytest.mark.slow
def test_it_can_be_installed_and_made_again(installed: Distribution, tmp_path: Path) -> None:
    made = wheel_of_installed(installed, tmp_path / "made")
    again = install(made, tmp_path / "again")
    assert contents(wheel_of_installed(again, tmp_path / "made again")) == contents(made)
    script = tmp_path / "again/bin/some-script"
    assert script.read_text().startswith(f"#!{sys.executable}")
    assert script.stat().st_mode & 0o100


@pytest.mark.slow
def test_a_file_that_was_changed_is_not_passed_on(installed: Distribution, tmp_path: Path) -> None:
    (module,) = (tmp_path / "installed").rglob("some_thing/__init__.py")
    module.write_text("VALUE = 43\n")
    with pytest.raises(WheelFileError, match="changed after the installation"):
        wheel_of_installed(installed, tmp_path / "made")
    module.unlink()
    with pytest.raises(WheelFileError, match="cannot be read"):
        wheel_of_installed(installed, tmp_path / "made")
    assert list((tmp_path / "made").iterdir()) == []


@pytest.mark.slow
def test_a_checkout_is_no_wheel(installed: Distribution, tmp_path: Path) -> None:
    (info,) = (tmp_path / "installed").rglob("*.dist-info")
    url = '{"dir_info": {"editable": true}, "url": "file:///home/me/a%20tree"}'
    (info / "direct_url.json").write_text(url)
    assert checkout_of(installed) == Path("/home/me/a tree")
    with pytest.raises(WheelFileError, match="from a checkout"):
        wheel_of_installed(installed, tmp_path / "made")


@pytest.mark.slow
def test_what_is_installed_here_makes_sound_wheels(tmp_path: Path) -> None:
    found = installed_distribution("msgspec")
    assert found is not None
    made = wheel_of_installed(found, tmp_path)
    assert zipfile.ZipFile(made).testzip() is None
    again = install(made, tmp_path / "again")
    assert again.version == found.version
    assert again.files is not None
    names = {str(each) for each in again.files if "__pycache__" not in str(each)}
    assert found.files is not None
    notes = ("INSTALLER", "REQUESTED", "direct_url.json", "RECORD")
    expected = {
        str(each)
        for each in found.files
        if "__pycache__" not in str(each) and not str(each).endswith(notes)
    }
    assert {each for each in names if not each.endswith(notes)} == expected
