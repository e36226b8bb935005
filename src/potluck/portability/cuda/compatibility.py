"""Which GPU code runs on which GPU, as far as NVIDIA guarantees it."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

from potluck.portability.cuda.fat_binary import CodeKind, GpuCode, GpuModule
from potluck.portability.cuda.needs import CudaNeeds
from potluck.portability.cuda.table import CudaTable, Numbers, dotted, numbers
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host


class GpuCompatibility(enum.IntEnum):
    """Whether code can run on a GPU, worst first."""

    NO = 0
    NOT_GUARANTEED = 1
    """Not guaranteed by NVIDIA: machine code for a Tegra on another chip, or the reverse."""
    YES = 2


def module_compatibility(
    module: GpuModule, capability: tuple[int, int], cuda: tuple[int, int] | None, table: CudaTable
) -> GpuCompatibility:
    """Return whether one of its codes runs on a GPU of ``capability`` with a driver that supports
    ``cuda``.
    """
    return max(code_compatibility(code, capability, cuda, table) for code in module.codes)


def code_compatibility(
    code: GpuCode, capability: tuple[int, int], cuda: tuple[int, int] | None, table: CudaTable
) -> GpuCompatibility:
    """Return the same for one code. PTX is not guaranteed to work if the driver's version is
    unknown.
    """
    if code.kind is CodeKind.PTX:
        if code.capability > capability:
            return GpuCompatibility.NO
        compiles = table.compiles(cuda, code.version) if cuda is not None else None
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
    if table.is_tegra(code.capability) or table.is_tegra(capability):
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


def _arm_target(modules: Iterable[GpuModule], table: CudaTable) -> ArmTarget | None:
    """Return the only target of GPU code; None if it has code for both, or none at all.

    Code for a Tegra with one target for both, such as Thor, tells neither.
    """
    found = {
        code.capability
        for module in modules
        for code in module.codes
        if code.kind is not CodeKind.OTHER
    }
    of_jetson = {each for each in found if dotted(each) in table.arm_builds.jetson}
    if not found or (of_jetson and not all(map(table.is_tegra, found))):
        return None
    return ArmTarget.JETSON if of_jetson else ArmTarget.SERVERS


def other_target_finding(
    needs: CudaNeeds,
    host: Host,
    table: CudaTable,
    *,
    file: str,
    cuda: tuple[int, int] | None,
    is_tegra: bool,
) -> Finding | None:
    """Return the finding about GPU code for servers on a Jetson, or for Jetson on a host with other
    GPUs; None if the code is for this host, or if that is unknown.

    ``cuda`` is the newest CUDA that the host supports. Code built with a newer major version does
    not run in any case, which other findings say.

    Before CUDA 13, NVIDIA's compilers have two targets for 64-bit ARM: servers (SBSA), such as
    Grace or Ampere Altra with a GPU, and Jetson Linux (L4T). Wheels for both have the same tags. A
    file does not name its target, but the GPUs that it has code for tell it.
    """
    target = _arm_target(needs.modules, table)
    is_too_new = bool(cuda and needs.toolkit and cuda[0] < needs.toolkit[0])
    if host.machine != "aarch64" or target is None or is_too_new:
        return None
    release = host.tegra_release or ()
    # An IGX board may have a discrete GPU, too, which runs code for servers.
    is_jetson = is_tegra and all(map(table.is_tegra, _capabilities(host)))
    if is_jetson and target is ArmTarget.SERVERS and table.has_own_arm_builds(release, cuda):
        difference = "is a Jetson, but this file's GPU code was built for ARM servers (SBSA)"
        fix = _jetson_fix(host, table)
    elif not is_tegra and target is ArmTarget.JETSON and _capabilities(host):
        difference = "is not a Jetson, but this file's GPU code was built for Jetson (L4T)"
        fix = "use the build for ARM servers (SBSA), or build it from source"
    else:
        return None
    # The driver compiles PTX itself, which is the same for both.
    is_compiled = all(_is_compiled(each, host, table, cuda) for each in needs.modules)
    return Finding(
        code="other-arm-target",
        severity=Severity.LIKELY if is_compiled else Severity.LIMIT,
        message=f"{host.name} {difference}: it has {code_names(needs.modules)}",
        file=file,
        feature="CUDA",
        fix=fix,
    )


def _is_compiled(
    module: GpuModule, host: Host, table: CudaTable, cuda: tuple[int, int] | None
) -> bool:
    """Return whether the driver may compile a module's PTX for every GPU of the host; if they are
    unknown, for the newest of Jetsons.
    """
    capabilities: Sequence[Numbers] = _capabilities(host) or [numbers(table.arm_builds.jetson[-1])]
    ptx = [code for code in module.codes if code.kind is CodeKind.PTX]
    return all(
        any(
            code_compatibility(code, (major, minor), cuda, table) is not GpuCompatibility.NO
            for code in ptx
        )
        for major, minor in capabilities
    )


def _capabilities(host: Host) -> list[tuple[int, int]]:
    return sorted({each.compute_capability for each in host.gpus if each.compute_capability})


def _jetson_fix(host: Host, table: CudaTable) -> str:
    jetpack = table.jetpack_of(host.tegra_release or (), host.cuda_driver)
    named = f"JetPack {jetpack.version.partition('.')[0]}" if jetpack else "its JetPack"
    wanted = ", ".join("sm_{}{}".format(*each) for each in _capabilities(host))
    return (
        f"look for a build for {named} among the wheels and containers of NVIDIA's Jetson AI Lab,"
        f" or build it from source on the Jetson for {wanted or 'its GPU'}"
    )
