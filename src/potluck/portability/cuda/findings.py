"""Whether the CUDA code in a library runs with a host's driver and GPUs.

A library that *links* the driver does not load without it, which is reported by the simulated
dynamic linker (``link``). This module is about GPU code in a library that has been loaded.
"""

from __future__ import annotations

from collections.abc import Iterator

from potluck.portability.cuda.compatibility import (
    GpuCompatibility,
    code_names,
    module_compatibility,
    other_target_finding,
)
from potluck.portability.cuda.fat_binary import CodeKind
from potluck.portability.cuda.needs import CudaNeeds
from potluck.portability.cuda.table import CudaTable, Numbers, dotted, numbers
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host, HostGpu

FEATURE = "CUDA"


def cuda_findings(
    needs: CudaNeeds, host: Host, table: CudaTable, *, file: str
) -> tuple[Finding, ...]:
    """Return what GPU code the library ``file`` has, and what keeps it from running on ``host``."""
    return tuple(_findings(needs, host, table, file))


def _findings(needs: CudaNeeds, host: Host, table: CudaTable, file: str) -> Iterator[Finding]:
    if needs.toolkit or needs.modules:
        yield Finding(
            code="cuda-build",
            severity=Severity.NOTE,
            message=_description(needs, table, is_tegra(host, table)),
            file=file,
        )
    if needs.problem:
        yield Finding(
            code="unreadable-gpu-code",
            severity=Severity.LIKELY,
            message=f"its GPU code cannot be read: {needs.problem}",
            file=file,
            feature=FEATURE,
        )
    if not needs.uses_driver:
        return
    cuda = host_cuda(host, table)
    if is_tegra(host, table):
        yield from _jetson_findings(needs, host, table, file, cuda)
        yield from _code_findings(needs, host, table, file, cuda)
        return
    if cuda is None and host.cuda_driver is None:
        yield Finding(
            code="no-cuda-driver",
            # If the host was not examined, nothing follows from what is not listed.
            severity=Severity.LIMIT if host.is_complete else Severity.NOTE,
            message=f"{host.name} has no NVIDIA driver: the GPU code in this file is not used",
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            fix=_install_driver(needs, table),
        )
        return
    yield from _driver_findings(needs, host, table, file, cuda)
    yield from _code_findings(needs, host, table, file, cuda)


def _description(needs: CudaNeeds, table: CudaTable, is_for_tegra: bool) -> str:
    parts = []
    if needs.toolkit:
        driver = least_driver(needs.toolkit, table)
        jetpack = table.jetpack_for(needs.toolkit)
        wants = f", which requires driver {driver} or newer" if driver else ""
        if is_for_tegra:
            wants = f", which requires JetPack {jetpack.version} or newer" if jetpack else ""
        wants = wants if needs.uses_driver else ""
        parts.append(f"built with CUDA {dotted(needs.toolkit)} ({needs.evidence}){wants}")
    if needs.modules:
        parts.append(f"GPU code for {code_names(needs.modules)}")
    return "; ".join(parts)


def least_driver(toolkit: Numbers, table: CudaTable) -> str:
    """Return the Linux driver that programs built with a toolkit require; empty if it is not in the
    table.
    """
    generation = table.generation_of(toolkit)
    return generation.least_driver if generation else ""


def host_cuda(host: Host, table: CudaTable) -> tuple[int, int] | None:
    """Return the newest CUDA that the host's driver supports: as the driver reports, or derived
    from its version, or on a Jetson from its JetPack. None if that is unknown or older than the
    table.
    """
    if host.cuda_version is not None:
        return host.cuda_version
    if is_tegra(host, table):
        jetpack = table.jetpack_of(host.tegra_release or (), host.cuda_driver)
        if jetpack is None:
            return None
        major, minor = numbers(jetpack.cuda)
        return major, minor
    return None if host.cuda_driver is None else table.cuda_of_driver(host.cuda_driver)


def is_tegra(host: Host, table: CudaTable) -> bool:
    """Return whether the host is a Jetson, or another Tegra."""
    if host.tegra_release is not None:
        return True
    capabilities = [gpu.compute_capability for gpu in host.gpus if gpu.compute_capability]
    return any(map(table.is_tegra, capabilities))


def _driver_findings(
    needs: CudaNeeds, host: Host, table: CudaTable, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    if not needs.toolkit:
        return
    driver = f" (driver {dotted(host.cuda_driver)})" if host.cuda_driver else ""
    if cuda is None:
        here = f"{host.name} has an NVIDIA driver older than CUDA 11{driver}"
    else:
        here = f"{host.name} supports at most CUDA {dotted(cuda)}{driver}"
    if cuda is None or cuda[0] < needs.toolkit[0]:
        yield Finding(
            code="old-cuda-driver",
            severity=Severity.LIMIT,
            message=f"{here}, but this file was built with CUDA {dotted(needs.toolkit)}",
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            fix=_install_driver(needs, table)
            + (f", or use a build for CUDA {cuda[0]}" if cuda else ""),
        )
    elif len(needs.toolkit) == 2 and cuda < needs.toolkit:
        own = table.driver_of(needs.toolkit)
        yield Finding(
            code="limited-cuda-driver",
            severity=Severity.NOTE,
            message=(
                f"{here}: newer features of CUDA {dotted(needs.toolkit)} do not work, nor does"
                " PTX that it generated (minor version compatibility)"
            ),
            file=file,
            fix=f"install NVIDIA driver {own} or newer to use all of it" if own else "",
        )


def _jetson_findings(
    needs: CudaNeeds, host: Host, table: CudaTable, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    """Return what the driver of a Jetson, which is a part of JetPack, does not support."""
    if not needs.toolkit:
        return
    jetpack = table.jetpack_of(host.tegra_release or (), host.cuda_driver)
    named = f" (JetPack {jetpack.version})" if jetpack else ""
    wanted = table.jetpack_for(needs.toolkit)
    update = f"JetPack {wanted.version} or newer" if wanted else "a newer JetPack"
    if cuda is None:
        yield Finding(
            code="unknown-jetpack",
            severity=Severity.LIKELY,
            message=(
                f"{host.name} is a Jetson whose JetPack version, which determines the driver, is"
                f" unknown, and this file was built with CUDA {dotted(needs.toolkit)}"
            ),
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            fix=f"it requires {update}",
        )
    elif cuda[0] < needs.toolkit[0]:
        yield Finding(
            code="old-cuda-driver",
            severity=Severity.LIMIT,
            message=(
                f"{host.name} is a Jetson that supports CUDA {dotted(cuda)}{named}, but this"
                f" file was built with CUDA {dotted(needs.toolkit)}"
            ),
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            fix=(
                f"install {update}, if NVIDIA provides it for this board, or use a build for"
                f" CUDA {cuda[0]} and Jetson"
            ),
        )
    elif len(needs.toolkit) == 2 and cuda < needs.toolkit:
        yield Finding(
            code="limited-cuda-driver",
            severity=Severity.NOTE,
            message=(
                f"{host.name} is a Jetson that supports CUDA {dotted(cuda)}{named}: newer"
                f" features of CUDA {dotted(needs.toolkit)} do not work, nor does PTX that it"
                " generated (minor version compatibility)"
            ),
            file=file,
            fix="install a newer JetPack, or NVIDIA's CUDA upgrade package for this one",
        )


def _install_driver(needs: CudaNeeds, table: CudaTable) -> str:
    driver = least_driver(needs.toolkit, table) if needs.toolkit else ""
    return f"install NVIDIA driver {driver} or newer" if driver else "install the NVIDIA driver"


def _code_findings(
    needs: CudaNeeds, host: Host, table: CudaTable, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    other = other_target_finding(
        needs, host, table, file=file, cuda=cuda, is_tegra=is_tegra(host, table)
    )
    if other is not None:
        yield other
        return
    for gpu in dict.fromkeys(host.gpus):
        yield from _gpu_findings(needs, gpu, table, file, cuda)


def _gpu_findings(
    needs: CudaNeeds, gpu: HostGpu, table: CudaTable, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    capability = gpu.compute_capability
    if capability is None:
        return
    results = {
        module: module_compatibility(module, capability, cuda, table)
        for module in needs.modules
        if any(code.kind is not CodeKind.OTHER for code in module.codes)
    }
    total = sum(module.count for module in results)
    lacking = sum(
        module.count
        for module, compatibility in results.items()
        if compatibility is GpuCompatibility.NO
    )
    where = f"{gpu.name} (compute capability {dotted(capability)})"
    have = code_names(results)
    if lacking:
        yield Finding(
            code="no-gpu-code",
            severity=Severity.LIMIT,
            message=(
                f"{'nothing' if lacking == total else f'{total - lacking} of {total} parts'}"
                f" of its GPU code runs on {where}: it has {have}"
            ),
            file=file,
            feature=FEATURE,
            fix=_other_build(capability, table),
        )
    elif GpuCompatibility.NOT_GUARANTEED in results.values():
        yield Finding(
            code="unpromised-gpu-code",
            severity=Severity.LIKELY,
            message=(
                f"NVIDIA does not guarantee that machine code for other chips runs on {where}:"
                f" it has {have}"
            ),
            file=file,
            feature=FEATURE,
        )


def _other_build(capability: tuple[int, int], table: CudaTable) -> str:
    supporting = [
        row.major for row in table.generation if numbers(row.oldest_capability) <= capability
    ]
    if not supporting:
        return ""
    return (
        f"use a build for CUDA {max(supporting)} or older that has code for this GPU, or"
        " build it from source"
    )
