"""Builds the wheels and the sdist: ``python -m tools.wheels.build [TARGET…]``, all without names.

A wheel that is not what we promise (``check``) is reported, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.wheels.check import check
from tools.wheels.core import ROOT, module
from tools.wheels.errors import BuildError
from tools.wheels.source import commit_time, package_files, write_sdist
from tools.wheels.targets import TARGETS, Target, target_named
from tools.wheels.wheel_archive import wheel_name, with_core, write_wheel


def build_wheels(targets: Sequence[Target], out: Path) -> tuple[Path, ...]:
    """Build wheels of this tree for ``targets`` in ``out``. Raise ``BuildError`` if that fails.

    Output of the last build is reused if it would be compiled the same.
    """
    epoch = commit_time(ROOT)
    package = package_files(ROOT)
    out.mkdir(parents=True, exist_ok=True)
    wheels = []
    for target in targets:
        files = with_core(package, module(target).read_bytes(), target)
        path = out / wheel_name(files, target)
        write_wheel(path, files, epoch=epoch)
        wheels.append(path)
    return tuple(wheels)


def main(arguments: Sequence[str]) -> int:
    """Build what is named; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [target.name for target in TARGETS]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(names))
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where wheels go")
    parser.add_argument("--sdist", action="store_true", help="make the sdist too")
    chosen = parser.parse_args(arguments)
    try:
        wheels = build_wheels(tuple(map(target_named, chosen.targets)) or TARGETS, chosen.out)
        sdists = (write_sdist(ROOT, chosen.out, epoch=commit_time(ROOT)),) if chosen.sdist else ()
    except (BuildError, ValueError) as error:
        print(f"wheels: {error}", file=sys.stderr)
        return 1
    for path in (*wheels, *sdists):
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
    return check(wheels)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
