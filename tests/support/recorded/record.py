"""What tests have shown of given inputs, on record, so that they need not show it again.

Some tests take minutes, and their outcome depends on files that rarely change. A record names the
hash of all of those files, the kinds of machines, and the tests that passed. While the hash is the
same and the machine is of one of these kinds, the tests are skipped with that as the reason; when
either differs, or there is a test that the record does not name, they all run. ``make prove`` runs
them whatever the record says, and writes it again if every one of them passed (a skipped one is no
proof) and they imported nothing of the project that is not among the files.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PROVES = "TEST_PROVE"
"""The environment variable with which all of them run and the record is written."""

ON_RECORD = "passed with these inputs"
"""How the reason for which a recorded test is skipped begins."""

_OF_ALL_TESTS = ("tests/conftest.py", "tests/support/recorded/")
"""They are imported in every run, and no outcome depends on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Test modules, and the files and folders (below ``root``) on which their outcome depends.

    Of the packages of registries only those of ``packages`` count, with their versions: a new
    release of another one is tried when something of ours changes. The outcome depends on the CPU's
    instruction sets unless ``is_for_any_cpu`` is set.
    """

    name: str
    modules: tuple[str, ...]
    inputs: tuple[str, ...]
    packages: tuple[str, ...] = ()
    is_for_any_cpu: bool = False

    def digest(self, root: Path) -> str:
        """The hash of the inputs' paths and contents, and of the packages' versions."""
        digest = hashlib.sha256()
        for name in self.packages:
            digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
        for path in sorted(self._files(root)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(root).as_posix()}\0{content}\n".encode())
        return digest.hexdigest()

    def has_input(self, name: str) -> bool:
        """Return whether the file with this path below the root is one of the inputs."""
        return any(name == each or name.startswith(f"{each}/") for each in self.inputs)

    def _files(self, root: Path) -> Iterable[Path]:
        for name in self.inputs:
            path = root / name
            if path.is_file():
                yield path
                continue
            if not path.is_dir():
                raise FileNotFoundError(f"{self.name} depends on {name}, which does not exist")
            yield from (
                file
                for file in path.rglob("*")
                if file.is_file()
                and "__pycache__" not in file.parts
                and file.suffix not in (".so", ".pyc")
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was shown of a group: every test of ``passed`` passed on each of the ``machines``."""

    inputs: str
    machines: tuple[str, ...]
    passed: tuple[str, ...]

    def covers(self, inputs: str, machine: str, tests: Iterable[str]) -> bool:
        """Whether there is nothing left to show."""
        is_same = self.inputs == inputs and machine in self.machines
        return is_same and set(tests) <= set(self.passed)

    def joined(self, older: Proof | None) -> Proof:
        """This one with the machines of an older one that showed the same."""
        if older is None or (older.inputs, set(older.passed)) != (self.inputs, set(self.passed)):
            return self
        return replace(self, machines=tuple(sorted({*self.machines, *older.machines})))


def rooms_up_to(room: str, root: Path) -> tuple[str, ...]:
    """The folders and files of ``potluck.ROOM`` and of all that it can import.

    That is what pyproject.toml lets import-linter accept: the rows below its own.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    rows = next(each["layers"] for each in contracts if "containers" not in each)
    own = next(index for index, row in enumerate(rows) if f"potluck.{room}" in row.split(" | "))
    names = [f"potluck.{room}", *(name for row in rows[own + 1 :] for name in row.split(" | "))]
    paths = [f"src/{name.replace('.', '/')}" for name in names]
    found = (path if (root / path).is_dir() else f"{path}.py" for path in paths)
    return ("src/potluck/__init__.py", *found)


def this_machine(group: Group) -> str:
    """Return what the outcomes depend on: the architecture, instruction sets, and the Python."""
    isas = "any CPU" if group.is_for_any_cpu else _instruction_sets()
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{platform.machine()} {isas}, Python {python}"


def _instruction_sets() -> str:
    from potluck.kernels import available_isas  # what any test imports is seen (imported_files)

    return "+".join(available_isas())


def imported_files(root: Path) -> list[str]:
    """Return the paths below ``root`` of the project's modules that this process has imported."""
    files = (getattr(module, "__file__", None) for module in tuple(sys.modules.values()))
    names = (Path(file).relative_to(root) for file in files if file and root in Path(file).parents)
    return sorted(
        name.as_posix()
        for name in names
        if name.parts[0] in ("benchmarks", "src", "tests", "tools")
    )


def read_proofs(path: Path) -> dict[str, Proof]:
    """The record by groups; nothing where there is none."""
    if not path.exists():
        return {}
    return {
        name: Proof(
            inputs=each["inputs"], machines=tuple(each["machines"]), passed=tuple(each["passed"])
        )
        for name, each in json.loads(path.read_text(encoding="utf-8")).items()
    }


def write_proofs(path: Path, proofs: dict[str, Proof]) -> None:
    document = {
        name: {"inputs": each.inputs, "machines": each.machines, "passed": sorted(each.passed)}
        for name, each in sorted(proofs.items())
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


class Record:
    """The record in use by one run of the tests, which are named by their ids.

    A group's inputs are hashed when the first of its modules is looked at, before tests run: an
    edit while they run is not what they have shown.
    """

    def __init__(
        self, path: Path, root: Path, groups: Sequence[Group], machine: Callable[[Group], str]
    ) -> None:
        self._path = path
        self._root = root
        self._groups = groups
        self._machine = machine
        self._digests: dict[str, str] = {}
        self._proofs = read_proofs(path)
        self._due: dict[str, set[str]] = {}
        self._modules: dict[str, set[str]] = {}
        self._passed: dict[str, set[str]] = {}
        self._not_passed: dict[str, set[str]] = {}

    def reason_to_skip(self, module: str, tests: Sequence[str]) -> str | None:
        """Why the ``tests`` of a module need not run; None: they do."""
        group = self._group(module)
        if group is None:
            return None
        self._due.setdefault(group.name, set()).update(tests)
        self._modules.setdefault(group.name, set()).add(module)
        if group.name not in self._digests:
            self._digests[group.name] = group.digest(self._root)
        proof = self._proofs.get(group.name)
        if proof is None or os.environ.get(PROVES):
            return None
        digest = self._digests[group.name]
        if not proof.covers(digest, self._machine(group), tests):
            return None
        return f"{ON_RECORD} ({digest[:12]}, {self._path.name}); make prove runs it"

    def note(self, module: str, test: str, *, has_passed: bool) -> None:
        """Note how a part of a test ended: all of them have to pass."""
        group = self._group(module)
        if group is not None:
            ended = self._passed if has_passed else self._not_passed
            ended.setdefault(group.name, set()).add(test)

    def write(self, imported: Iterable[str] = ()) -> list[str]:
        """Write what was shown of groups of which every test of every module passed.

        Return why other groups that ran are not recorded: a test did not pass, a module did not
        run, or the process has ``imported`` a file that is not among the inputs. Of those and of
        groups that did not run the record stays as it is, also if another run writes it at the same
        time.
        """
        left = []
        shown: dict[str, Proof] = {}
        imported = [name for name in imported if not name.startswith(_OF_ALL_TESTS)]
        for group in self._groups:
            due = self._due.get(group.name, set())
            if not due:
                continue
            passed = self._passed.get(group.name, set()) - self._not_passed.get(group.name, set())
            if missing := sorted(set(group.modules) - self._modules[group.name]):
                left.append(f"{group.name}: {missing[0]} did not run")
            elif failed := sorted(due - passed):
                left.append(f"{group.name}: {failed[0]} did not pass")
            elif unlisted := [name for name in imported if not group.has_input(name)]:
                left.append(
                    f"{group.name}: its inputs lack {', '.join(unlisted)}, imported by its tests"
                )
            else:
                shown[group.name] = Proof(
                    inputs=self._digests[group.name],
                    machines=(self._machine(group),),
                    passed=tuple(due),
                )
        with self._path.parent.joinpath(f".{self._path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            proofs = read_proofs(self._path)
            joined = {name: proof.joined(proofs.get(name)) for name, proof in shown.items()}
            write_proofs(self._path, proofs | joined)
        return left

    def _group(self, module: str) -> Group | None:
        return next((group for group in self._groups if module in group.modules), None)
