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
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """A sound wheel with ``members``; ``metadata`` are more lines of its METADATA."""
    path = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, data in (members or {}).items():
            archive.writestr(member, data)
        text = METADATA.format(name=name, version=version, more=metadata)
        archive.writestr(f"{name}-{version}.dist-info/METADATA", text)
    return path
