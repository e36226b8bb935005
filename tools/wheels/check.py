"""Check that a wheel is what we promise: ``python -m tools.wheels.check WHEEL…``.

By ``auditwheel`` and ``abi3audit`` where they know, and by the module itself for the rest: what it
exports, which instruction sets it has, that it names no path of the machine that built it.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from elftools.elf.elffile import ELFFile

from tools.wheels.core import ROOT
from tools.wheels.targets import TARGETS, Target
from tools.wheels.wheel_archive import dist_info, read_wheel

LARGEST_BYTES = 4_000_000
"""The largest size of a wheel without the demo model."""

INSTRUCTION_SETS = {
    "x86_64": ("scalar", "avx2", "avx512", "avx512_bf16", "amx"),
    "aarch64": ("scalar", "neon", "dotprod", "i8mm"),
}
"""The rows of the table in ``cpp/dispatch/table.cc``, all of them."""

_DEMO_MODEL = "potluck/data/demo/"
_LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1"}
_LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}


def problems(path: Path, root: Path) -> tuple[str, ...]:
    """Return the problems of a wheel that was built from the tree at ``root``."""
    files = read_wheel(path)
    target = _target_of(path)
    modules = [name for name in files if PurePosixPath(name).suffix == ".so"]
    wanted = f"potluck/kernels/{target.module_file}"
    if modules != [wanted]:
        return (f"has {modules} in place of {wanted}",)
    return (
        *_content_problems(path, files),
        *module_problems(files[wanted], target.machine, (root, Path.home(), Path(sys.prefix))),
        *_auditwheel_problems(path, target),
        *_abi3audit_problems(path, target),
    )


def bytes_without_model(path: Path) -> int:
    """Return the size of a wheel without the demo model: its archive less the model's members."""
    with zipfile.ZipFile(path) as archive:
        model = sum(
            info.compress_size
            for info in archive.infolist()
            if info.filename.startswith(_DEMO_MODEL)
        )
    return path.stat().st_size - model


def _target_of(path: Path) -> Target:
    for target in TARGETS:
        if path.name.endswith(f"-{target.abi.abi_tag}-{'.'.join(target.platforms)}.whl"):
            return target
    raise ValueError(f"{path.name} is not one of our wheels")


def _content_problems(path: Path, files: dict[str, bytes]) -> Iterator[str]:
    size = bytes_without_model(path)
    if size >= LARGEST_BYTES:
        yield f"has {size} bytes without the demo model"
    own = ("potluck/", f"{dist_info(files)}/")
    if strangers := [name for name in files if not name.startswith(own)]:
        yield f"has files outside of the package: {strangers}"


def module_problems(module: bytes, machine: str, paths: tuple[Path, ...]) -> Iterator[str]:
    """Yield the problems of an extension module for ``machine``, which must not name ``paths``."""
    elf = ELFFile(io.BytesIO(module))
    exported = {
        symbol.name
        for symbol in elf.get_section_by_name(".dynsym").iter_symbols()
        if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name
    }
    if exported != {"PyInit__core"}:
        yield f"exports {sorted(exported)}"
    dynamic = elf.get_section_by_name(".dynamic")
    needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
    if strangers := needed - _LIBRARIES - {_LOADERS[machine]}:
        yield f"needs {sorted(strangers)}"
    for tag in ("DT_RPATH", "DT_RUNPATH"):
        if any(True for _ in dynamic.iter_tags(tag)):
            yield f"has a {tag}"
    for isa in INSTRUCTION_SETS[machine]:
        if b"\0" + isa.encode("ascii") + b"\0" not in module:
            yield f"lacks the kernels of {isa}"
    for path in paths:
        if str(path) != "/" and str(path).encode() in module:
            yield f"names {path}"


def _auditwheel_problems(path: Path, target: Target) -> Iterator[str]:
    """Yield a problem if ``auditwheel`` finds a higher or a lower tag than the wheel has."""
    output = _output("auditwheel", "show", str(path))
    found = re.search(r'following platform tag:\s*"([^"]+)"', output)
    if found is None or found[1] not in target.platforms:
        yield f"is not {target.platforms[0]} for auditwheel: {output}"


def _abi3audit_problems(path: Path, target: Target) -> Iterator[str]:
    if not target.abi.is_stable:
        return
    command = (sys.executable, "-m", "abi3audit", "--strict", str(path))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"is not clean for abi3audit: {done.stdout}{done.stderr}"


def _output(module: str, *arguments: str) -> str:
    command = (sys.executable, "-m", module, *arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def check(paths: Sequence[Path]) -> int:
    """Print the size of each wheel and what is wrong with it; 1 if anything is."""
    status = 0
    for path in paths:
        size = bytes_without_model(path)
        print(f"{path.name}: {path.stat().st_size} bytes, {size} without the demo model")
        for problem in problems(path, ROOT):
            print(f"  {problem}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(check([Path(argument) for argument in sys.argv[1:]]))
