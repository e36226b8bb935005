"""Wheels put together member by member, well or ill."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"


def write_wheel(
    folder: Path,
    members: Mapping[str, bytes] | None = None,
    *,
    name: str = "pack",
    version: str = "1.0",
    tag: str = "cp311-cp311-manylinux_2_17_x86_64",
    metadata: str = "",
    info: Mapping[str, bytes | None] | None = None,
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """A sound wheel with ``members``; ``metadata`` are more lines of its METADATA.

    ``info`` are other contents of its folder of metadata, None of what is not to be there.
    """
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, data in (members or {}).items():
            archive.writestr(member, data)
        text = METADATA.format(name=name, version=version, more=metadata)
        wheel = f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: {tag}\n"
        files = {"METADATA": text.encode(), "WHEEL": wheel.encode(), "RECORD": b""}
        for file, contents in {**files, **(info or {})}.items():
            if contents is not None:
                archive.writestr(f"{name}-{version}.dist-info/{file}", contents)
    return path
