"""What a host's driver and GPUs make of the CUDA in a library.

A library that only *links* the driver does not load without it: that is the dynamic linker's to say
(``link``). Here is what its GPU code does once it is loaded.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

from potluck.portability.cuda_needs import CudaNeeds
from potluck.portability.cuda_table import CudaTable, Numbers, dotted, numbers
from potluck.portability.fat_binary import CodeKind, GpuCode, GpuModule
from potluck.portability.finding import Finding, Severity
from potluck.portability.host import Host, HostGpu

FEATURE = "CUDA"


class Runs(enum.IntEnum):
    """Whether code runs on a GPU, from the worst."""

    NO = 0
    UNPROMISED = 1
    """NVIDIA does not promise it: machine code of another chip beside or on a Tegra."""
    YES = 2


def cuda_findings(
    needs: CudaNeeds, host: Host, table: CudaTable, *, file: str
) -> tuple[Finding, ...]:
    """Of the library ``file`` on ``host``: what its GPU code is, and what keeps it from running."""
    return tuple(_findings(needs, host, table, file))


def _findings(needs: CudaNeeds, host: Host, table: CudaTable, file: str) -> Iterator[Finding]:
    if needs.toolkit or needs.modules:
        yield Finding(
            code="cuda-build",
            severity=Severity.NOTE,
            message=_description(needs, table),
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
    if cuda is None and host.cuda_driver is None:
        yield Finding(
            code="no-cuda-driver",
            # Of a host that was not looked at, nothing follows from what is not listed.
            severity=Severity.LIMIT if host.is_complete else Severity.NOTE,
            message=f"{host.name} has no driver of NVIDIA: what this file has for GPUs is not used",
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            way_out=_install_driver(needs, table),
        )
        return
    yield from _driver_findings(needs, host, table, file, cuda)
    for gpu in dict.fromkeys(host.gpus):
        yield from _gpu_findings(needs, gpu, table, file, cuda)


def _description(needs: CudaNeeds, table: CudaTable) -> str:
    parts = []
    if needs.toolkit:
        driver = least_driver(needs.toolkit, table)
        wants = (
            f", which wants a driver of {driver} or newer" if driver and needs.uses_driver else ""
        )
        parts.append(f"built with CUDA {dotted(needs.toolkit)} ({needs.evidence}){wants}")
    if needs.modules:
        parts.append(f"GPU code for {_code_names(needs.modules)}")
    return "; ".join(parts)


def least_driver(toolkit: Numbers, table: CudaTable) -> str:
    """Of Linux, for programs that a toolkit built; empty if it is not in the table."""
    generation = table.generation_of(toolkit)
    return generation.least_driver if generation else ""


def host_cuda(host: Host, table: CudaTable) -> tuple[int, int] | None:
    """The newest CUDA that the host's driver runs: its own word, or else by the driver's number,
    which says nothing of Tegra's. None if that is not known, or from before the table.
    """
    if host.cuda_version is not None or host.cuda_driver is None or _is_tegra(host, table):
        return host.cuda_version
    return table.cuda_of_driver(host.cuda_driver)


def _is_tegra(host: Host, table: CudaTable) -> bool:
    capabilities = [gpu.compute_capability for gpu in host.gpus if gpu.compute_capability]
    return any(map(table.is_tegra, capabilities))


def _driver_findings(
    needs: CudaNeeds, host: Host, table: CudaTable, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    if not needs.toolkit or (cuda is None and _is_tegra(host, table)):
        return
    driver = f" (driver {dotted(host.cuda_driver)})" if host.cuda_driver else ""
    if cuda is None:
        here = f"{host.name} has a driver of NVIDIA from before CUDA 11{driver}"
    else:
        here = f"{host.name} runs CUDA {dotted(cuda)} at most{driver}"
    if cuda is None or cuda[0] < needs.toolkit[0]:
        yield Finding(
            code="old-cuda-driver",
            severity=Severity.LIMIT,
            message=f"{here}, and this was built with CUDA {dotted(needs.toolkit)}",
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            way_out=_install_driver(needs, table)
            + (f", or take a build for CUDA {cuda[0]}" if cuda else ""),
        )
    elif len(needs.toolkit) == 2 and cuda < needs.toolkit:
        own = table.driver_of(needs.toolkit)
        yield Finding(
            code="limited-cuda-driver",
            severity=Severity.NOTE,
            message=(
                f"{here}: what CUDA {dotted(needs.toolkit)} has beyond that does not work, nor"
                " does PTX that it wrote (minor version compatibility)"
            ),
            file=file,
            way_out=f"install NVIDIA's driver {own} or newer for all of it" if own else "",
        )


def _install_driver(needs: CudaNeeds, table: CudaTable) -> str:
    driver = least_driver(needs.toolkit, table) if needs.toolkit else ""
    return f"install NVIDIA's driver {driver} or newer" if driver else "install NVIDIA's driver"


def _gpu_findings(
    needs: CudaNeeds, gpu: HostGpu, table: CudaTable, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    capability = gpu.compute_capability
    if capability is None:
        return
    results = {
        module: module_runs(module, capability, cuda, table)
        for module in needs.modules
        if any(code.kind is not CodeKind.OTHER for code in module.codes)
    }
    total = sum(module.count for module in results)
    lacking = sum(module.count for module, runs in results.items() if runs is Runs.NO)
    where = f"{gpu.name} (compute capability {dotted(capability)})"
    have = _code_names(results)
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
            way_out=_other_build(capability, table),
        )
    elif Runs.UNPROMISED in results.values():
        yield Finding(
            code="unpromised-gpu-code",
            severity=Severity.LIKELY,
            message=(
                f"NVIDIA does not promise that machine code for other chips runs on {where}:"
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
    return f"take a build for CUDA {max(supporting)} or older with code for this GPU, or build it"


def module_runs(
    module: GpuModule, capability: tuple[int, int], cuda: tuple[int, int] | None, table: CudaTable
) -> Runs:
    """Whether one of its codes runs on a GPU of ``capability`` with a driver of ``cuda``."""
    return max(code_runs(code, capability, cuda, table) for code in module.codes)


def code_runs(
    code: GpuCode, capability: tuple[int, int], cuda: tuple[int, int] | None, table: CudaTable
) -> Runs:
    """The same of one code. PTX that a driver of unknown age has to compile is not promised."""
    if code.kind is CodeKind.PTX:
        if code.capability > capability:
            return Runs.NO
        compiles = table.compiles(cuda, code.version) if cuda is not None else None
        return {True: Runs.YES, False: Runs.NO, None: Runs.UNPROMISED}[compiles]
    if code.kind is not CodeKind.SASS:
        return Runs.NO
    if code.capability == capability:
        return Runs.YES
    if code.capability[0] != capability[0] or code.capability[1] > capability[1]:
        return Runs.NO
    if table.is_tegra(code.capability) or table.is_tegra(capability):
        return Runs.UNPROMISED
    return Runs.YES


def _code_names(modules: Iterable[GpuModule]) -> str:
    codes = sorted({code for module in modules for code in module.codes})
    return ", ".join(dict.fromkeys(map(_code_name, codes)))


def _code_name(code: GpuCode) -> str:
    number = "{}{}".format(*code.capability)
    if code.kind is CodeKind.PTX:
        return f"compute_{number} (PTX)"
    return f"sm_{number}" if code.kind is CodeKind.SASS else f"intermediate code for {number}"
