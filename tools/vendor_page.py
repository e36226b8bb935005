"""Fetches the JavaScript packages of the page from npm, at pinned versions.

    python -m tools.vendor_page           fetch them, and compare with what is committed
    python -m tools.vendor_page --write   fetch them, and write src/potluck/dashboard/static/vendor

The packages are used as they are published, except for the edits that this file lists: a Content
Security Policy without inline scripts allows no import map, so imports between packages become
relative paths. ``vendored.json`` records versions, licences and hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "src" / "potluck" / "dashboard" / "static" / "vendor"
RECORD = "vendored.json"
ALLOWED_LICENSES = ("Apache-2.0", "MIT")


@dataclass(frozen=True, slots=True, kw_only=True)
class VendoredFile:
    """A file of a package, the name that it gets here, and what is changed in it.

    Each of ``replacements`` must occur in the file; ``appended`` is added at its end.
    """

    source: str
    name: str
    replacements: tuple[tuple[str, str], ...] = ()
    appended: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VendoredPackage:
    """A package at one version, as npm's registry identifies it.

    ``license`` is the licence under which it is used: one of those that ``package.json`` offers.
    ``archive_sha256`` is the hash of the archive that ``npm pack`` fetches.
    """

    name: str
    version: str
    license: str
    archive_sha256: str
    files: tuple[VendoredFile, ...]


PREACT = ('from"preact"', 'from"./preact.js"')
HOOKS = ('from"preact/hooks"', 'from"./preact-hooks.js"')
SIGNALS_CORE = ('from"@preact/signals-core"', 'from"./signals-core.js"')

PACKAGES = (
    VendoredPackage(
        name="preact",
        version="11.2.0",
        license="MIT",
        archive_sha256="3c4456766bd32b6b534d52bf4e9c2a29b33e7eedf6e96ed479300ba1a7888ebf",
        files=(
            VendoredFile(source="dist/preact.mjs", name="preact.js"),
            VendoredFile(
                source="hooks/dist/hooks.mjs", name="preact-hooks.js", replacements=(PREACT,)
            ),
        ),
    ),
    VendoredPackage(
        name="@preact/signals-core",
        version="1.14.5",
        license="MIT",
        archive_sha256="94c421ac996214c94f532fb4c43d8ede048a16df0cd9538ffb965174dbe8daba",
        files=(VendoredFile(source="dist/signals-core.mjs", name="signals-core.js"),),
    ),
    VendoredPackage(
        name="@preact/signals",
        version="2.11.4",
        license="MIT",
        archive_sha256="66ea8221dd8aaa0da2365d49c3f116b071d56cfb63b2e16c072c6b4e08a928b7",
        files=(
            VendoredFile(
                source="dist/signals.mjs",
                name="signals.js",
                replacements=(PREACT, HOOKS, SIGNALS_CORE),
            ),
        ),
    ),
    VendoredPackage(
        name="htm",
        version="3.1.1",
        license="Apache-2.0",
        archive_sha256="2425b9bee11409177bcabc7f32e319926fc6690c1701c0b257c88bdff2d5ba90",
        files=(VendoredFile(source="dist/htm.module.js", name="htm.js"),),
    ),
    VendoredPackage(
        name="uplot",
        version="1.6.32",
        license="MIT",
        archive_sha256="4b8a8191e425658e3ea8c8c1314b0fc679c861ee3a1af2b20c7b16ba50b5133d",
        files=(
            VendoredFile(
                source="dist/uPlot.iife.min.js",
                name="uplot.js",
                appended="export default uPlot;\n",
            ),
            VendoredFile(source="dist/uPlot.min.css", name="uplot.css"),
        ),
    ),
    VendoredPackage(
        name="marked",
        version="18.2.1",
        license="MIT",
        archive_sha256="d66c5213fc203466186060105b01f51896764ba64b3797d2620d02e28e34b8ca",
        files=(VendoredFile(source="lib/marked.esm.js", name="marked.js"),),
    ),
    VendoredPackage(
        name="dompurify",
        version="3.4.18",
        license="Apache-2.0",
        archive_sha256="8b86f79c6481fec23dd81d4de32179422668912ed033c0c47e786a6e70cb3379",
        files=(
            VendoredFile(
                source="dist/purify.min.js",
                name="dompurify.js",
                appended="export default globalThis.DOMPurify;\n",
            ),
        ),
    ),
)


class VendoringError(Exception):
    """A package differs from this file's description."""


def license_name(package: VendoredPackage) -> str:
    """Return the name of the file with the package's licence."""
    return f"licenses/{package.name.removeprefix('@').replace('/', '-')}.txt"


def edited(file: VendoredFile, content: bytes) -> bytes:
    """Return the content with the file's edits applied, and without a link to a source map.

    Raise ``VendoringError`` if a text that is to be replaced is not there.
    """
    text = content.decode("utf-8")
    for old, new in file.replacements:
        if old not in text:
            raise VendoringError(f"{file.source} does not contain {old!r}")
        text = text.replace(old, new)
    lines = [line for line in text.splitlines() if not line.startswith("//# sourceMappingURL=")]
    return ("\n".join(lines) + "\n" + file.appended).encode()


def fetch(package: VendoredPackage, folder: Path) -> dict[str, bytes]:
    """Return the files of the package's archive by their paths in it.

    Raise ``VendoringError`` if the archive does not have the pinned hash.
    """
    completed = subprocess.run(
        ["npm", "pack", "--silent", f"{package.name}@{package.version}"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    path = folder / completed.stdout.split()[-1]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != package.archive_sha256:
        raise VendoringError(
            f"{package.name} {package.version} has the hash {digest}, not {package.archive_sha256}"
        )
    files = {}
    with tarfile.open(path) as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                files[member.name.removeprefix("package/")] = content.read()
    return files


def check_license(package: VendoredPackage, manifest: bytes) -> None:
    """Raise ``VendoringError`` unless ``package.json`` offers the licence that is named here."""
    offered = str(json.loads(manifest)["license"])
    if package.license not in offered.strip("()").split(" OR "):
        raise VendoringError(f"{package.name} has the licence {offered}, not {package.license}")
    if package.license not in ALLOWED_LICENSES:
        raise VendoringError(f"{package.name}: the licence {package.license} is not allowed")


def vendored() -> dict[str, bytes]:
    """Fetch every package, and return what belongs into the folder, by name."""
    contents: dict[str, bytes] = {}
    record = []
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            published = fetch(package, Path(folder))
        check_license(package, published["package.json"])
        contents[license_name(package)] = published["LICENSE"]
        files = []
        for file in package.files:
            source = published[file.source]
            contents[file.name] = edited(file, source)
            files.append(
                {
                    "file": file.name,
                    "source": file.source,
                    "source_sha256": hashlib.sha256(source).hexdigest(),
                    "sha256": hashlib.sha256(contents[file.name]).hexdigest(),
                }
            )
        record.append(
            {
                "name": package.name,
                "version": package.version,
                "license": package.license,
                "license_file": license_name(package),
                "license_sha256": hashlib.sha256(published["LICENSE"]).hexdigest(),
                "archive_sha256": package.archive_sha256,
                "files": files,
            }
        )
    contents[RECORD] = (json.dumps({"packages": record}, indent=2) + "\n").encode()
    return contents


def differences(contents: dict[str, bytes], folder: Path) -> list[str]:
    """Return one line for each file of the folder that is missing, different or superfluous."""
    present = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    lines = []
    for name in sorted(contents.keys() | present.keys()):
        if name not in present:
            lines.append(f"{name} is missing")
        elif name not in contents:
            lines.append(f"{name} belongs to no package")
        elif contents[name] != present[name]:
            lines.append(f"{name} differs from what was published")
    return lines


def main() -> int:
    """Compare, or write with ``--write``. Return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write the files")
    write = parser.parse_args().write
    contents = vendored()
    if write:
        for name, content in contents.items():
            path = FOLDER / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    lines = differences(contents, FOLDER)
    for line in lines:
        print(line)
    if not lines:
        print(f"{len(contents)} files are as published")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
