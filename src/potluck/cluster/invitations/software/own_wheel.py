"""Find the wheels of the running version of Potluck that can be given to an invited machine.

A node installed from a wheel rebuilds that wheel from its own files; it is compatible with similar
machines. Other machines need another wheel: from a given folder, the store, or the index. A wheel
with other Python sources than this node's is not used, whatever version it claims.
"""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from potluck import version
from potluck.cluster.invitations.software.installed_wheel import (
    checkout_of,
    installed_distribution,
)
from potluck.errors import WheelFileError
from potluck.version import __version__

NAME = "potluck"


def checkout() -> Path | None:
    """Return the checkout that this node runs from, if it is an editable installation."""
    found = installed_distribution(NAME)
    return None if found is None else checkout_of(found)


def folders_with_checkout(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders, and the one that ``make wheels`` fills if this node runs from a
    checkout.
    """
    found = checkout()
    return (*folders, found / "dist") if found is not None else tuple(folders)


def check_own_wheel(folders: Sequence[Path]) -> None:
    """Raise ``WheelFileError`` if this node has no wheel of itself for any machine.

    ``folders`` may contain wheels, in addition to what is installed.
    """
    found = checkout()
    if found is None:
        return
    wheels = own_wheels(folders_with_checkout(folders))
    if any(map(is_of_this_node, wheels)):
        return
    why = "its wheels were built from other sources" if wheels else "there is no wheel of it"
    raise WheelFileError(
        NAME,
        f"this node runs from the checkout {found}, and {why}",
        hint=f"run make wheels in {found}, or name a folder with wheels: potluck invite --wheels",
    )


def keep_wheels(folders: Sequence[Path], store: Path) -> None:
    """Copy the wheels of some folders to the store, where later invitations find them as well.

    Raise ``WheelFileError`` for a folder without wheels, and ``OSError``.
    """
    for folder in folders:
        wheels = sorted(folder.glob("*.whl"))
        if not wheels:
            raise WheelFileError(str(folder), "there is no wheel in it", hint="make wheels")
        store.mkdir(parents=True, exist_ok=True)
        for wheel in wheels:
            draft = store / f".coming-{wheel.name}"
            shutil.copyfile(wheel, draft)
            draft.replace(store / wheel.name)


def own_wheels(folders: Sequence[Path]) -> list[Path]:
    """Return the wheels of Potluck's version in some folders."""
    return [
        path
        for folder in folders
        for path in sorted(folder.glob(f"{NAME}-*.whl"))
        if _version(path) == __version__
    ]


def is_of_this_node(wheel: Path) -> bool:
    """Return whether its Python sources are those that run here; False for a broken wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = {
                each.filename: each.CRC
                for each in archive.infolist()
                if each.filename.startswith(f"{NAME}/") and each.filename.endswith(".py")
            }
    except (OSError, zipfile.BadZipFile):
        return False
    return found == _sources()


@lru_cache(maxsize=1)
def _sources() -> dict[str, int]:
    """Return the checksums of this node's Python sources, as stored in archives."""
    return dict(_checksums(Path(version.__file__).parent))


def _checksums(root: Path) -> Iterator[tuple[str, int]]:
    for path in root.rglob("*.py"):
        yield f"{NAME}/{path.relative_to(root).as_posix()}", zlib.crc32(path.read_bytes())


def _version(wheel: Path) -> str:
    try:
        return str(parse_wheel_filename(wheel.name)[1])
    except InvalidWheelFilename:
        return ""
