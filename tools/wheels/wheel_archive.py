"""Wheels as archives: from one without a core, and a core, to the wheel of a target.

The same contents give the same bytes: names are in order, times and modes are not those of files.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tools.wheels.errors import BuildError
from tools.wheels.targets import Target

_LEVEL = 9
_MODE = 0o100644
_UNIX = 3  # of "version made by" (APPNOTE.TXT 4.4.2)
_MODULE_FOLDER = "potluck/kernels"


def read_wheel(path: Path) -> dict[str, bytes]:
    """Return the contents of a wheel's files by name."""
    with zipfile.ZipFile(path) as archive:
        return {
            info.filename: archive.read(info) for info in archive.infolist() if not info.is_dir()
        }


def with_core(files: Mapping[str, bytes], module: bytes, target: Target) -> dict[str, bytes]:
    """Return the files of a target's wheel: those of the wheel without a core, the module, and a
    ``WHEEL`` with the target's tags. There is no ``RECORD`` yet.

    Raises ``BuildError`` if ``files`` are not a wheel's, or have a core.
    """
    info = dist_info(files)
    if any(name.endswith(".so") for name in files):
        raise BuildError("it has a core already")
    made = {name: content for name, content in files.items() if name != f"{info}/RECORD"}
    made[f"{_MODULE_FOLDER}/{target.module_file}"] = module
    made[f"{info}/WHEEL"] = _retagged(files[f"{info}/WHEEL"].decode("utf-8"), target)
    return made


def dist_info(files: Mapping[str, bytes]) -> str:
    """Return the name of a wheel's folder with metadata.

    Raises ``BuildError`` if it has none.
    """
    for name in files:
        if name.endswith(".dist-info/WHEEL"):
            return name.removesuffix("/WHEEL")
    raise BuildError("it has no WHEEL file")


def wheel_name(files: Mapping[str, bytes], target: Target) -> str:
    """Return the file name of a target's wheel (PEP 427)."""
    abi = target.abi
    stem = dist_info(files).removesuffix(".dist-info")
    return f"{stem}-{abi.python_tag}-{abi.abi_tag}-{'.'.join(target.platforms)}.whl"


def write_wheel(path: Path, files: Mapping[str, bytes], *, epoch: int) -> None:
    """Write a wheel with its ``RECORD``; ``epoch`` (seconds since 1970) is the time of all files.

    Metadata comes last, as PEP 427 recommends.
    """
    info = dist_info(files)
    record = f"{info}/RECORD"
    ordered = sorted(files, key=lambda name: (name.startswith(f"{info}/"), name))
    contents = {name: files[name] for name in ordered}
    contents[record] = _record(contents, record)
    when = time.gmtime(max(epoch, 315532800))[:6]  # 1980, the first that an archive can say
    unfinished = path.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name, content in contents.items():
            member = zipfile.ZipInfo(name, date_time=when)
            member.create_system = _UNIX
            member.external_attr = _MODE << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED, _LEVEL)
    unfinished.rename(path)


def _retagged(wheel: str, target: Target) -> bytes:
    lines = [
        line
        for line in wheel.splitlines()
        if line and not line.startswith(("Tag:", "Root-Is-Purelib:"))
    ]
    lines += ["Root-Is-Purelib: false", *(f"Tag: {tag}" for tag in target.tags)]
    return ("\n".join(lines) + "\n").encode("utf-8")


def _record(files: Mapping[str, bytes], record: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        writer.writerow((name, f"sha256={digest.decode('ascii')}", len(content)))
    writer.writerow((record, "", ""))
    return text.getvalue().encode("utf-8")
