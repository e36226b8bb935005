"""The wheels to build: one for every machine and every ABI of Python."""

from __future__ import annotations

from dataclasses import dataclass

GLIBC = "2.17"
"""The glibc of manylinux2014, the oldest for which our Pythons are still built."""

MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonAbi:
    """An ABI that the core is compiled for. ``headers`` is the version of Python whose headers are
    used: for the stable ABI, a newer one than the oldest that it runs on.
    """

    python_tag: str
    abi_tag: str
    headers: str

    @property
    def is_stable(self) -> bool:
        """Whether newer Pythons can load it too."""
        return self.abi_tag == "abi3"


CP311 = PythonAbi(python_tag="cp311", abi_tag="cp311", headers="3.11")
CP312_AND_NEWER = PythonAbi(python_tag="cp312", abi_tag="abi3", headers="3.13")
ABIS = (CP311, CP312_AND_NEWER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One wheel."""

    machine: str
    abi: PythonAbi

    @property
    def name(self) -> str:
        """The target's name on the command line: ``cp311-x86_64``."""
        return f"{self.abi.python_tag}-{self.machine}"

    @property
    def platforms(self) -> tuple[str, ...]:
        """The platform tags: the one of PEP 600, and the older one for older installers."""
        version = GLIBC.replace(".", "_")
        return f"manylinux_{version}_{self.machine}", f"manylinux2014_{self.machine}"

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags, as its ``WHEEL`` lists them."""
        abi = self.abi
        return tuple(f"{abi.python_tag}-{abi.abi_tag}-{each}" for each in self.platforms)

    @property
    def module_file(self) -> str:
        """The name of the core's file, as Python looks for it."""
        if self.abi.is_stable:
            return "_core.abi3.so"
        digits = self.abi.python_tag.removeprefix("cp")
        return f"_core.cpython-{digits}-{self.machine}-linux-gnu.so"


TARGETS = tuple(Target(machine=machine, abi=abi) for machine in MACHINES for abi in ABIS)


def target_named(name: str) -> Target:
    """Return the target with that name.

    Raises ``ValueError`` if there is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    known = ", ".join(target.name for target in TARGETS)
    raise ValueError(f"no wheel is called {name}; there are {known}")
