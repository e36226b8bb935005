"""Rebuild the wheel of an installed distribution from its files, without downloading anything, and
find the wheels of the running version of Potluck that can be given to an invited machine.

Every file must match its RECORD, so that changes made after the installation are not passed on.
Files created by installers (launchers, bytecode, metadata) are left out.

A node installed from a wheel rebuilds that wheel from its own files; it is compatible with similar
machines. Other machines need another wheel: from a given folder, the store, or the index. A wheel
with other Python sources than this node's is not used, whatever version it claims.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.parser import Parser
from functools import lru_cache
from importlib.metadata import Distribution, FileHash, PackageNotFoundError, distribution
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import unquote, urlsplit

from packaging.tags import parse_tag
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from potluck import version
from potluck.errors import WheelFileError
from potluck.version import __version__

_NOTES = frozenset({"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"})
"""Files that installers add to ``*.dist-info``."""

_TIME = (1980, 1, 1, 0, 0, 0)
"""The oldest time that an archive can have: the same files produce the same archive."""

_LAUNCHED_BY = re.compile(rb"\A#!/[^\n]*python[^\n]*(\n)")
"""The first line of scripts, where installers insert the path of their Python; wheels have
``#!python`` there."""


def checkout_of(found: Distribution) -> Path | None:
    """Return the checkout that a distribution runs from; None if it was installed from a wheel."""
    text = found.read_text("direct_url.json")
    origin = json.loads(text) if text else {}
    if not origin.get("dir_info", {}).get("editable"):
        return None
    return Path(unquote(urlsplit(origin["url"]).path))


def installed_distribution(name: str) -> Distribution | None:
    """Return the distribution of that name that this Python finds; None if there is none."""
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def wheel_of_installed(found: Distribution, folder: Path) -> Path:
    """Return the wheel of an installed distribution, made in ``folder`` if it is not there yet.

    Raise ``WheelFileError`` if the installed files no longer match those of a wheel.
    """
    name = found.metadata["Name"]
    path = folder / _file_name(found)
    if path.exists():
        return path
    if checkout_of(found) is not None:
        raise WheelFileError(name, "it is installed from a checkout, not from a wheel")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".coming-", delete=False) as draft:
        try:
            _write(found, draft)
            Path(draft.name).chmod(0o644)
            Path(draft.name).replace(path)
        except BaseException:
            Path(draft.name).unlink(missing_ok=True)
            raise
    return path


def _file_name(found: Distribution) -> str:
    name = canonicalize_name(found.metadata["Name"]).replace("-", "_")
    version = canonicalize_version(found.version, strip_trailing_zero=False).replace("-", "_")
    text = found.read_text("WHEEL")
    if text is None:
        raise WheelFileError(name, "it was not installed from a wheel")
    headers = Parser().parsestr(text)
    build = f"-{headers['Build']}" if headers["Build"] else ""
    tags = [each.strip() for each in headers.get_all("Tag", [])]
    parsed = [tag for each in tags for tag in parse_tag(each)]
    if not parsed:
        raise WheelFileError(name, "its WHEEL has no tag")
    parts = (
        ".".join(dict.fromkeys(getattr(tag, part) for tag in sorted(parsed, key=str)))
        for part in ("interpreter", "abi", "platform")
    )
    return f"{name}-{version}{build}-{'-'.join(parts)}.whl"


def _write(found: Distribution, file: IO[bytes]) -> None:
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    info = ""
    with zipfile.ZipFile(file, "w") as archive:
        for each in _files(found):
            mode = 0o100755 if each.is_program else 0o100644
            archive.writestr(archive_member(each.name, mode), each.data)
            rows.writerow((each.name, f"sha256={_coded_digest(each.data)}", len(each.data)))
            if each.name.endswith(".dist-info/WHEEL"):
                info = each.name.removesuffix("WHEEL")
        rows.writerow((f"{info}RECORD", "", ""))
        archive.writestr(archive_member(f"{info}RECORD", 0o100644), record.getvalue())


def archive_member(name: str, mode: int = 0) -> zipfile.ZipInfo:
    """Return the entry of a compressed file in an archive."""
    member = zipfile.ZipInfo(name, _TIME)
    member.compress_type = zipfile.ZIP_DEFLATED
    member.external_attr = mode << 16
    return member


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of a wheel. ``name`` is its name in the archive."""

    name: str
    data: bytes
    is_program: bool


def _files(found: Distribution) -> Iterator[_File]:
    name = found.metadata["Name"]
    launchers = {each.name for each in found.entry_points}
    if found.files is None:
        raise WheelFileError(name, "its RECORD is missing")
    paths = [PurePosixPath(each) for each in found.files]
    info = next((each.parent.name for each in paths if each.name == "WHEEL"), "")
    for each, path in sorted(zip(found.files, paths, strict=True), key=lambda pair: str(pair[0])):
        is_note = path.parent.name.endswith(".dist-info") and path.name in _NOTES
        is_outside = path.parts[0] == ".."
        is_launcher = is_outside and path.parent.name == "bin" and path.name in launchers
        if is_note or is_launcher or path.suffix == ".pyc":
            continue
        file = Path(str(each.locate()))
        data = _checked(name, file, each.hash)
        in_wheel = str(path)
        if is_outside:
            parts = [part for part in path.parts if part != ".."]
            is_script = parts[0] == "bin"
            kind = "scripts" if is_script else "data"
            rest = parts[1:] if is_script else parts
            in_wheel = "/".join((f"{info.removesuffix('.dist-info')}.data", kind, *rest))
            data = _LAUNCHED_BY.sub(b"#!python\\1", data, count=1) if is_script else data
        yield _File(name=in_wheel, data=data, is_program=os.access(file, os.X_OK))


def _checked(name: str, file: Path, recorded: FileHash | None) -> bytes:
    """Return the contents of a file. Raise ``WheelFileError`` if they do not match the record."""
    try:
        data = file.read_bytes()
    except OSError as error:
        raise WheelFileError(name, f"one of its files cannot be read: {error}") from None
    if recorded is None or (recorded.mode, recorded.value) != ("sha256", _coded_digest(data)):
        raise WheelFileError(name, f"{file} was changed after the installation")
    return data


def _coded_digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


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
