"""Packages of a distribution and all that they depend on, unpacked into a directory.

apt chooses, downloads and verifies them (``apt-get`` 2.0 or newer, and ``dpkg-deb``), with lists
and state of its own: nothing is installed, and this machine's apt is left as it is. No script of a
package runs, so what those would make (``ld.so.cache``) is not there.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CONFIGURATION = """\
Dir "{folder}";
Dir::State "{folder}/state";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
Dir::Etc "{folder}/etc";
Dir::Bin::dpkg "/bin/false";
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "3";
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The location of a distribution's packages. ``keyring`` is the file with its keys."""

    url: str
    suite: str
    components: tuple[str, ...]
    keyring: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AptTree:
    """An unpacked tree; ``versions`` are those of the packages in it, by name."""

    root: Path
    versions: dict[str, str]


def unpack_packages(
    archive: Archive, architecture: str, packages: Sequence[str], folder: Path
) -> AptTree:
    """Download ``packages`` with what they need into ``folder`` (empty, or of the same call
    before), and unpack them there. Raises CalledProcessError if apt or dpkg-deb fails.
    """
    for name in (
        "state/lists/partial",
        "cache/archives/partial",
        "etc/apt.conf.d",
        "etc/preferences.d",
        "root",
    ):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    (folder / "etc/sources.list").write_text(
        f"deb [signed-by={archive.keyring}] {archive.url} {archive.suite} "
        f"{' '.join(archive.components)}\n"
    )
    configuration = folder / "apt.conf"
    configuration.write_text(_CONFIGURATION.format(folder=folder, architecture=architecture))
    environment = {**os.environ, "APT_CONFIG": str(configuration)}
    for arguments in (["update"], ["install", "--yes", "--download-only", *packages]):
        subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    versions = {}
    for file in sorted((folder / "cache/archives").glob("*.deb")):
        subprocess.run(["dpkg-deb", "--extract", file, folder / "root"], check=True)
        name, version, _ = file.name.split("_")
        versions[name] = re.sub("%([0-9a-f]{2})", lambda match: chr(int(match[1], 16)), version)
    return AptTree(root=folder / "root", versions=versions)
