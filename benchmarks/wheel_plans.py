"""Verify that planned sets install and load: ``METHODOLOGY.md``, "Wheel plans".

    PYTHONPATH=. python benchmarks/wheel_plans.py [--output benchmarks/results/wheel_plans.json]
        [--only warp-lang] [--keep FOLDER]

For each case, versions are planned for its places; then pip installs each planned set for the place
(from the index, with the planned hashes, wheels only), and the Python of the place's root imports
all that was installed: this machine's natively, others through qemu-user. One line for each set.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from circumstances import circumstances
from command_line import documented_parser

from potluck.portability.checks.needs import default_needs_folder
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.hosts.shipped import load_shipped_host
from potluck.portability.planning.index import WithLocalWheels
from potluck.portability.planning.pip_index import PipIndex
from potluck.portability.planning.plan import HostPlan
from potluck.portability.planning.planner import Planner
from tools.roots.enter import CPUINFO, Root
from tools.roots.system import system
from tools.roots.wheel_site import manylinux_platforms

_IMPORTS = Path(__file__).with_name("wheel_plan_imports.py")
_IMPORT_SECONDS = 1500.0
"""The time limit for imports: PyTorch takes minutes under qemu-user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A host that is planned for, and the root that stands for it. ``python`` is the root's.

    ``differs`` says where the root is another system than the host; empty where it is the same.
    """

    host: str
    root: str
    python: tuple[int, int]
    differs: str = ""

    def described(self) -> Host:
        """Return the host with the root's Python."""
        python = HostPython(implementation="cpython", version=self.python)
        return dataclasses.replace(load_shipped_host(self.host), python=python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A set to plan. ``modules`` are those that must be importable."""

    name: str
    requirements: tuple[str, ...]
    modules: tuple[str, ...]
    places: tuple[Place, ...]


UBUNTU_20 = Place(host="ubuntu-20.04-x86_64", root="focal-amd64", python=(3, 8))
DEBIAN_11 = Place(host="debian-11-x86_64", root="bullseye-python-amd64", python=(3, 9))
DEBIAN_11_ARM = Place(host="debian-11-aarch64", root="bullseye-python-arm64", python=(3, 9))
DEBIAN_12 = Place(host="debian-12-x86_64", root="bookworm-amd64", python=(3, 11))
DEBIAN_12_ARM = Place(host="debian-12-aarch64", root="bookworm-arm64", python=(3, 11))
DEBIAN_13 = Place(host="debian-13-x86_64", root="trixie-amd64", python=(3, 13))
DEBIAN_13_ARM = Place(host="debian-13-aarch64", root="trixie-arm64", python=(3, 13))
JETPACK_5 = Place(
    host="jetpack-5-aarch64",
    root="bullseye-python-arm64",
    python=(3, 9),
    differs="Debian 11 has the same glibc 2.31 and GCC 10, Python 3.9 instead of 3.8, and no Tegra",
)
RHEL_8 = Place(
    host="rhel-8-x86_64",
    root="focal-amd64",
    python=(3, 8),
    differs="Ubuntu 20.04 has glibc 2.31 and GCC 10 instead of 2.28 and 8; Python 3.8 is a stream",
)
AMAZON_2023 = Place(
    host="amazon-linux-2023-x86_64",
    root="bullseye-python-amd64",
    python=(3, 9),
    differs="Debian 11 has glibc 2.31 and GCC 10 instead of 2.34 and 11",
)
PLACES = (DEBIAN_11, DEBIAN_11_ARM, DEBIAN_12, DEBIAN_12_ARM, DEBIAN_13, DEBIAN_13_ARM)

CASES = (
    Case(
        name="warp-lang",
        requirements=("warp-lang",),
        modules=("warp",),
        places=(JETPACK_5, UBUNTU_20, DEBIAN_12, RHEL_8, AMAZON_2023),
    ),
    Case(
        name="eclipse-zenoh",
        requirements=("eclipse-zenoh",),
        modules=("zenoh",),
        places=(JETPACK_5, UBUNTU_20, RHEL_8, AMAZON_2023, *PLACES),
    ),
    Case(
        name="onnxruntime",
        requirements=("onnxruntime",),
        modules=("onnxruntime",),
        places=(JETPACK_5, UBUNTU_20, RHEL_8, AMAZON_2023, *PLACES),
    ),
    Case(
        name="potluck",
        requirements=("potluck",),
        modules=("potluck.kernels", "potluck.cli.app"),
        places=(DEBIAN_12, DEBIAN_12_ARM, DEBIAN_13, DEBIAN_13_ARM),
    ),
    Case(
        name="torch",
        requirements=("torch",),
        modules=("torch",),
        places=(DEBIAN_12, DEBIAN_12_ARM),
    ),
)


def main() -> None:
    """Plan, install, import, print, write the document."""
    parser = documented_parser(__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="+", default=[each.name for each in CASES])
    parser.add_argument("--wheels", type=Path, help="a folder with wheels of Potluck")
    parser.add_argument("--keep", type=Path, help="keeps planned wheels")
    arguments = parser.parse_args()
    document: dict[str, Any] = {
        "schema": "potluck.benchmark.wheel_plans/1",
        **circumstances(),
        "cases": [],
    }
    for case in CASES:
        if case.name in arguments.only:
            own = sorted(arguments.wheels.glob("potluck-*.whl")) if arguments.wheels else []
            with tempfile.TemporaryDirectory(prefix="potluck-plans-") as folder:
                kept = arguments.keep or Path(folder, "wheels")
                document["cases"].append(run_case(case, own, kept))
            if arguments.output:  # after each: all of them take long
                arguments.output.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def run_case(case: Case, own: Sequence[Path], kept: Path) -> dict[str, Any]:
    """Return what was planned for a case, and what came of each set."""
    kept.mkdir(parents=True, exist_ok=True)
    by_host = {each.host: each for each in case.places}
    with PipIndex() as pip:
        index = WithLocalWheels(pip, own)
        planner = Planner(
            index,
            [each.described() for each in case.places],
            default_python=HostPython(implementation="cpython", version=sys.version_info[:2]),
            folder=kept,
            needs_folder=default_needs_folder(os.environ),
        )
        began = time.monotonic()
        plan = planner.plan(case.requirements)
        planning_seconds = time.monotonic() - began
        sets = []
        for is_shared, host_plan in _distinct(plan.shared or (), plan.own):
            sets.append(
                {
                    "answer": "shared" if is_shared else "own",
                    **_try_set(case, by_host[host_plan.host], host_plan, planner, kept),
                }
            )
            _print_set(case, sets[-1])
        queried_projects = pip.queried_projects
    return {
        "name": case.name,
        "requirements": list(case.requirements),
        "planning_seconds": round(planning_seconds, 1),
        "num_read_wheels": planner.judge.num_read,
        "looked_up": list(queried_projects),
        "has_shared": plan.shared is not None,
        "problems": [
            {"package": each.package, "hosts": list(each.hosts)}
            for each in (*plan.problems, *plan.conflicts)
        ],
        "sets": sets,
    }


def _distinct(
    shared: Sequence[HostPlan], own: Sequence[HostPlan]
) -> Iterator[tuple[bool, HostPlan]]:
    """Yield both answers; a host's own is left out if it equals the shared one."""
    for each in shared:
        yield True, each
    for each in own:
        if each not in shared:
            yield False, each


def _try_set(
    case: Case, place: Place, plan: HostPlan, planner: Planner, kept: Path
) -> dict[str, Any]:
    root = system(place.root)
    row: dict[str, Any] = {
        "host": place.host,
        "root": place.root,
        "root_differs": place.differs or None,
        "python": ".".join(map(str, place.python)),
        "is_emulated": root.is_emulated,
        "wheels": {each.file.filename: each.file.sha256 for each in plan.wheels},
        "lost": sorted(
            {f"{each.name}: {loss.feature}" for each in plan.wheels for loss in each.lost}
        ),
    }
    with tempfile.TemporaryDirectory(prefix="potluck-site-") as folder:
        site = Path(folder, "site")
        for wheel in plan.wheels:
            planner.fetch(wheel, kept)
        problem = _install(plan, place, root, site, kept)
        row["install_problem"] = problem or None
        imported = {} if problem else _import_all(case, place, root, site)
    failures = {name: error_text for name, error_text in imported.items() if error_text}
    needed = [name for name in case.modules if imported.get(name, "not tried")]
    return {
        **row,
        "num_imported": len(imported) - len(failures),
        "import_failures": failures,
        "is_loaded": not problem and not needed,
    }


def _install(plan: HostPlan, place: Place, root: Root, site: Path, kept: Path) -> str:
    """Let pip install a set as a requirements file with hashes; return what went wrong.

    pip chooses among the wheels in ``kept`` that the host takes. What a set lacks is found out
    where markers are those of this machine: pip has no way to be told another one's.
    """
    minor = load_shipped_host(place.host).libc_version[1]
    lines = [
        f"{each.name}=={each.version} --hash=sha256:{each.file.sha256}" for each in plan.wheels
    ]
    requirements = site.with_suffix(".txt")
    requirements.write_text("\n".join(lines) + "\n")
    is_this = root.machine == "x86_64" and place.python == sys.version_info[:2]
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--target", str(site), "--no-compile", "--only-binary", ":all:", "--require-hashes"),
        *("--no-index", "--find-links", str(kept)),
        # pip compares with the Python that it runs on, and has no other markers.
        *([] if is_this else ["--no-deps", "--ignore-requires-python"]),
        *("--implementation", "cp", "--python-version", ".".join(map(str, place.python))),
        *(f"--platform={each}" for each in manylinux_platforms(root.machine, minor)),
        *("--requirement", str(requirements)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip()[-2000:]


def _import_all(case: Case, place: Place, root: Root, site: Path) -> dict[str, str]:
    """Import each module in the root, and return the error of each; empty if it succeeded."""
    shutil.copy(_IMPORTS, site.parent / "imports.py")
    shared = {"site": site, "imports": site.parent / "imports.py"}
    if root.is_emulated:
        shared["cpuinfo"] = CPUINFO
    entered = dataclasses.replace(root, shared=shared)
    python = ".".join(map(str, place.python))
    try:
        done = entered.run(
            f"/usr/bin/python{python}",
            *("/mnt/imports", "/mnt/site", *case.modules),
            env={
                "PYTHONHOME": "/usr",
                "PYTHONPATH": "/mnt/site",
                "HOME": "/tmp",
                "LC_ALL": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            timeout_seconds=_IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(case.modules, f"not within {_IMPORT_SECONDS} s")
    found: dict[str, str] = {}
    for line in done.stdout.splitlines():
        if line.startswith("import "):
            _, name, error_text = line.split(" ", 2)
            found[name] = json.loads(error_text)
    if done.returncode != 0:
        ending = f"Python ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        return found | {name: ending for name in case.modules if found.get(name, "x")}
    return found


def _print_set(case: Case, row: dict[str, Any]) -> None:
    verdict = "loads" if row["is_loaded"] else "DOES NOT LOAD"
    print(
        f"{case.name} {row['answer']} {row['host']} in {row['root']} ({row['python']}): {verdict}, "
        f"{len(row['wheels'])} wheels, {row['num_imported']} modules"
    )
    for name, error_text in row["import_failures"].items():
        print(f"  {name}: {error_text[:300]}")
    if row["install_problem"]:
        print(f"  pip: {row['install_problem'][:500]}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
