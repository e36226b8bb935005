"""Whether the CUDA code in a library runs with a host's driver and GPUs.

A library that *links* the driver does not load without it, which is reported by the simulated
dynamic linker (``link``). This module is about GPU code in a library that has been loaded.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence

from potluck.portability.cuda.fat_binary import CodeKind, CudaNeeds, GpuCode, GpuModule
from potluck.portability.cuda.table import Numbers, dotted, numbers, shipped_table
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host, HostGpu

FEATURE = "CUDA"


class GpuCompatibility(enum.IntEnum):
    """Whether code can run on a GPU, worst first."""

    NO = 0
    NOT_GUARANTEED = 1
    """Not guaranteed by NVIDIA: machine code for a Tegra on another chip, or the reverse."""
    YES = 2


def code_compatibility(
    code: GpuCode, capability: tuple[int, int], cuda: tuple[int, int] | None
) -> GpuCompatibility:
    """Return whether a code runs on a GPU of ``capability`` with a driver that supports ``cuda``.
    PTX is not guaranteed to work if the driver's version is unknown.
    """
    if code.kind is CodeKind.PTX:
        if code.capability > capability:
            return GpuCompatibility.NO
        compiles = shipped_table().compiles(cuda, code.version) if cuda is not None else None
        return {
            True: GpuCompatibility.YES,
            False: GpuCompatibility.NO,
            None: GpuCompatibility.NOT_GUARANTEED,
        }[compiles]
    if code.kind is not CodeKind.SASS:
        return GpuCompatibility.NO
    if code.capability == capability:
        return GpuCompatibility.YES
    if code.capability[0] != capability[0] or code.capability[1] > capability[1]:
        return GpuCompatibility.NO
    if shipped_table().is_tegra(code.capability) or shipped_table().is_tegra(capability):
        return GpuCompatibility.NOT_GUARANTEED
    return GpuCompatibility.YES


def code_names(modules: Iterable[GpuModule]) -> str:
    """Return the codes as NVIDIA's tools name them: ``compute_90 (PTX), sm_90``."""
    codes = sorted({code for module in modules for code in module.codes})
    return ", ".join(dict.fromkeys(map(_code_name, codes)))


def _code_name(code: GpuCode) -> str:
    number = "{}{}".format(*code.capability)
    if code.kind is CodeKind.PTX:
        return f"compute_{number} (PTX)"
    return f"sm_{number}" if code.kind is CodeKind.SASS else f"intermediate code for {number}"


class ArmTarget(enum.Enum):
    """The machines that GPU code was built for."""

    SERVERS = enum.auto()
    JETSON = enum.auto()


def _arm_target(modules: Iterable[GpuModule]) -> ArmTarget | None:
    """Return the only target of GPU code; None if it has code for both, or none at all.

    Code for a Tegra with one target for both, such as Thor, tells neither.
    """
    found = {
        code.capability
        for module in modules
        for code in module.codes
        if code.kind is not CodeKind.OTHER
    }
    of_jetson = {each for each in found if dotted(each) in shipped_table().arm_builds.jetson}
    if not found or (of_jetson and not all(map(shipped_table().is_tegra, found))):
        return None
    return ArmTarget.JETSON if of_jetson else ArmTarget.SERVERS


def _other_target_finding(
    needs: CudaNeeds, host: Host, file: str, cuda: tuple[int, int] | None
) -> Finding | None:
    """Return the finding about GPU code for servers on a Jetson, or for Jetson on a host with other
    GPUs; None if the code is for this host, or if that is unknown.

    ``cuda`` is the newest CUDA that the host supports. Code built with a newer major version does
    not run in any case, which other findings say.

    Before CUDA 13, NVIDIA's compilers have two targets for 64-bit ARM: servers (SBSA), such as
    Grace or Ampere Altra with a GPU, and Jetson Linux (L4T). Wheels for both have the same tags. A
    file does not name its target, but the GPUs that it has code for tell it.
    """
    target = _arm_target(needs.modules)
    is_too_new = bool(cuda and needs.toolkit and cuda[0] < needs.toolkit[0])
    if host.machine != "aarch64" or target is None or is_too_new:
        return None
    release = host.tegra_release or ()
    # An IGX board may have a discrete GPU, too, which runs code for servers.
    has_tegra = is_tegra(host)
    is_jetson = has_tegra and all(map(shipped_table().is_tegra, _capabilities(host)))
    if (
        is_jetson
        and target is ArmTarget.SERVERS
        and shipped_table().has_own_arm_builds(release, cuda)
    ):
        difference = "is a Jetson, but this file's GPU code was built for ARM servers (SBSA)"
        fix = _jetson_fix(host)
    elif not has_tegra and target is ArmTarget.JETSON and _capabilities(host):
        difference = "is not a Jetson, but this file's GPU code was built for Jetson (L4T)"
        fix = "use the build for ARM servers (SBSA), or build it from source"
    else:
        return None
    # The driver compiles PTX itself, which is the same for both.
    is_compiled = all(_is_compiled(each, host, cuda) for each in needs.modules)
    return Finding(
        code="other-arm-target",
        severity=Severity.LIKELY if is_compiled else Severity.LIMIT,
        message=f"{host.name} {difference}: it has {code_names(needs.modules)}",
        file=file,
        feature=FEATURE,
        fix=fix,
    )


def _is_compiled(module: GpuModule, host: Host, cuda: tuple[int, int] | None) -> bool:
    """Return whether the driver may compile a module's PTX for every GPU of the host; if they are
    unknown, for the newest of Jetsons.
    """
    capabilities: Sequence[Numbers] = _capabilities(host) or [
        numbers(shipped_table().arm_builds.jetson[-1])
    ]
    ptx = [code for code in module.codes if code.kind is CodeKind.PTX]
    return all(
        any(
            code_compatibility(code, (major, minor), cuda) is not GpuCompatibility.NO
            for code in ptx
        )
        for major, minor in capabilities
    )


def _capabilities(host: Host) -> list[tuple[int, int]]:
    return sorted({each.compute_capability for each in host.gpus if each.compute_capability})


def _jetson_fix(host: Host) -> str:
    jetpack = shipped_table().jetpack_of(host.tegra_release or (), host.cuda_driver)
    named = f"JetPack {jetpack.version.partition('.')[0]}" if jetpack else "its JetPack"
    wanted = ", ".join("sm_{}{}".format(*each) for each in _capabilities(host))
    return (
        f"look for a build for {named} among the wheels and containers of NVIDIA's Jetson AI Lab,"
        f" or build it from source on the Jetson for {wanted or 'its GPU'}"
    )


def cuda_findings(needs: CudaNeeds, host: Host, *, file: str) -> Iterator[Finding]:
    """Yield what GPU code the library ``file`` has, and what keeps it from running on ``host``."""
    if needs.toolkit or needs.modules:
        yield Finding(
            code="cuda-build",
            severity=Severity.NOTE,
            message=_description(needs, is_tegra(host)),
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
    cuda = host_cuda(host)
    if is_tegra(host):
        yield from _jetson_findings(needs, host, file, cuda)
    elif cuda is None and host.cuda_driver is None:
        yield Finding(
            code="no-cuda-driver",
            # If the host was not examined, nothing follows from what is not listed.
            severity=Severity.LIMIT if host.is_complete else Severity.NOTE,
            message=f"{host.name} has no NVIDIA driver: the GPU code in this file is not used",
            file=file,
            library="libcuda.so.1",
            feature=FEATURE,
            fix=_install_driver(needs),
        )
        return
    else:
        yield from _driver_findings(needs, host, file, cuda)
    yield from _code_findings(needs, host, file, cuda)


def _description(needs: CudaNeeds, is_for_tegra: bool) -> str:
    parts = []
    if needs.toolkit:
        driver = shipped_table().least_driver(needs.toolkit)
        jetpack = shipped_table().jetpack_for(needs.toolkit)
        wants = f", which requires driver {driver} or newer" if driver else ""
        if is_for_tegra:
            wants = f", which requires JetPack {jetpack.version} or newer" if jetpack else ""
        wants = wants if needs.uses_driver else ""
        parts.append(f"built with CUDA {dotted(needs.toolkit)} ({needs.evidence}){wants}")
    if needs.modules:
        parts.append(f"GPU code for {code_names(needs.modules)}")
    return "; ".join(parts)


def host_cuda(host: Host) -> tuple[int, int] | None:
    """Return the newest CUDA that the host's driver supports: as the driver reports, or derived
    from its version, or on a Jetson from its JetPack. None if that is unknown or older than the
    table.
    """
    if host.cuda_version is not None:
        return host.cuda_version
    if is_tegra(host):
        jetpack = shipped_table().jetpack_of(host.tegra_release or (), host.cuda_driver)
        if jetpack is None:
            return None
        major, minor = numbers(jetpack.cuda)
        return major, minor
    return None if host.cuda_driver is None else shipped_table().cuda_of_driver(host.cuda_driver)


def is_tegra(host: Host) -> bool:
    """Return whether the host is a Jetson, or another Tegra."""
    if host.tegra_release is not None:
        return True
    return any(map(shipped_table().is_tegra, _capabilities(host)))


def _driver_findings(
    needs: CudaNeeds, host: Host, file: str, cuda: tuple[int, int] | None
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
            fix=_install_driver(needs) + (f", or use a build for CUDA {cuda[0]}" if cuda else ""),
        )
    elif len(needs.toolkit) == 2 and cuda < needs.toolkit:
        own = shipped_table().driver_of(needs.toolkit)
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
    needs: CudaNeeds, host: Host, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    """Return what the driver of a Jetson, which is a part of JetPack, does not support."""
    if not needs.toolkit:
        return
    jetpack = shipped_table().jetpack_of(host.tegra_release or (), host.cuda_driver)
    named = f" (JetPack {jetpack.version})" if jetpack else ""
    wanted = shipped_table().jetpack_for(needs.toolkit)
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


def _install_driver(needs: CudaNeeds) -> str:
    driver = shipped_table().least_driver(needs.toolkit)
    return f"install NVIDIA driver {driver} or newer" if driver else "install the NVIDIA driver"


def _code_findings(
    needs: CudaNeeds, host: Host, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    other = _other_target_finding(needs, host, file, cuda)
    if other is not None:
        yield other
        return
    for gpu in dict.fromkeys(host.gpus):
        yield from _gpu_findings(needs, gpu, file, cuda)


def _gpu_findings(
    needs: CudaNeeds, gpu: HostGpu, file: str, cuda: tuple[int, int] | None
) -> Iterator[Finding]:
    capability = gpu.compute_capability
    if capability is None:
        return
    results = {
        module: max(code_compatibility(code, capability, cuda) for code in module.codes)
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
            fix=_other_build(capability),
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


def _other_build(capability: tuple[int, int]) -> str:
    supporting = [
        row.major
        for row in shipped_table().generation
        if numbers(row.oldest_capability) <= capability
    ]
    if not supporting:
        return ""
    return (
        f"use a build for CUDA {max(supporting)} or older that has code for this GPU, or"
        " build it from source"
    )
