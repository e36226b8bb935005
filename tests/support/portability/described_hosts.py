"""Hosts that tests describe: only what they are about is filled in."""

from __future__ import annotations

from collections.abc import Iterable

from potluck.portability.hosts.host import Host, HostGpu


def described_host(
    *,
    machine: str = "x86_64",
    is_complete: bool = True,
    libraries: Iterable[str] = ("libc.so.6",),
    cpu_features: Iterable[str] | None = None,
    driver: tuple[int, ...] | None = None,
    cuda: tuple[int, int] | None = None,
    gpus: Iterable[tuple[str, tuple[int, int] | None]] = (),
    tegra_release: tuple[int, ...] | None = None,
    amd_architectures: Iterable[str] = (),
) -> Host:
    """A host with glibc 2.36; ``libraries`` are known by their names, ``gpus`` by name and compute
    capability.
    """
    return Host(
        name="a host",
        origin="a test",
        machine=machine,
        libc="glibc",
        libc_version=(2, 36),
        is_complete=is_complete,
        libraries=(),
        other_libraries=frozenset(libraries),
        cpu_features=None if cpu_features is None else frozenset(cpu_features),
        cuda_driver=driver,
        cuda_version=cuda,
        gpus=tuple(HostGpu(name=name, compute_capability=number) for name, number in gpus),
        tegra_release=tegra_release,
        amd_architectures=tuple(amd_architectures),
    )
