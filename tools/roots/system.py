"""A root made from a set of packages, ready to run programs in."""

from __future__ import annotations

from tools.roots.enter import Root
from tools.roots.made_once import FOLDER, made_once
from tools.roots.package_set import newcomers, roots
from tools.roots.unpack import unpack

_MOUNT_POINTS = ("dev", "mnt", "proc", "sys", "tmp")


def system(name: str) -> Root:
    """Return the root with that name (``package_sets.toml``); build it if it is missing.

    Several processes may call this at once. Raises as ``unpack`` and ``Root.run`` do, and
    ``OSError`` if the loader's cache cannot be built.
    """
    package_set = {**roots(), **newcomers()}[name]
    path = FOLDER / f"{name}-{package_set.digest}"
    with made_once(path) as made:
        if made:
            unpack(package_set, made, FOLDER / "packages")
            for mount_point in _MOUNT_POINTS:
                (made / mount_point).mkdir(exist_ok=True)
            _make_loader_cache(Root(name=name, path=made, machine=package_set.machine))
    return Root(name=name, path=path, machine=package_set.machine)


def _make_loader_cache(root: Root) -> None:
    """Run ``ldconfig``, as installing packages does. Ubuntu's is a script around the program."""
    script = root.path / "sbin" / "ldconfig.real"
    done = root.run("/sbin/ldconfig.real" if script.exists() else "/sbin/ldconfig")
    if done.returncode != 0:
        raise OSError(f"ldconfig failed in {root.name}: {done.stderr.strip()}")
