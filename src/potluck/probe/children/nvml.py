"""Queries NVIDIA's management library (NVML) about every GPU, in a separate process.

``python -m potluck.probe.children.nvml`` prints an ``NvmlDocument``, or ``{"refused": reason}``
if NVML cannot be initialized, in which case CUDA does not work either. The process may crash, hang
and print anything: ``host.child`` handles that.

After an error, the requested value is missing; after an error that says that a GPU is gone, so are
all further values of that GPU. Source: NVIDIA's NVML API reference, whose function names
``nvidia-ml-py`` uses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from potluck.probe.children.documents import NvmlCard, NvmlDocument, NvmlInstance, NvmlMemory

_Value = TypeVar("_Value")

LIBRARY = "libnvidia-ml.so.1"

_OTHER_DIRECTORIES = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/local/nvidia/lib64")
"""The library's paths in WSL, NixOS and Google's containers, outside the linker's search path."""

_MAX_CARDS = 64
"""More than any machine has (the kernel driver's NV_MAX_DEVICES is 32). A higher count is an error,
and requesting billions of handles would take forever.
"""

_MAX_INSTANCES = 64
"""More than any card has, which is at most 7."""

_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_ERRORS = {
    _NOT_SUPPORTED: "not supported",
    4: "no permission to use the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    _FUNCTION_NOT_FOUND: "not supported by this version of the NVIDIA driver",
    _GPU_IS_LOST: "the GPU is lost: it fell off the bus",
    _RESET_REQUIRED: "the GPU needs a reset",
    18: "NVIDIA driver/library version mismatch: reboot, or reload the nvidia module",
}
"""Explanations of NVML's error codes for users; for others, the name in the reference is shown."""

_EXPECTED = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND})
"""Not reported: this GPU or this driver does not have the value."""

_GONE = frozenset({_GPU_IS_LOST, _RESET_REQUIRED})


class _CardGoneError(Exception):
    """The GPU no longer responds."""


class _Asker:
    """Queries values, and records the values that could not be read, by error.

    Errors in ``gone`` raise ``_CardGoneError`` instead.
    """

    def __init__(self, *, gone: frozenset[int] = frozenset()) -> None:
        self._gone = gone
        self._costs: dict[str, list[str]] = {}

    def ask(self, what: str, call: Callable[..., _Value], *arguments: object) -> _Value | None:
        """Return the result of ``call``, or None."""
        from pynvml import NVMLError

        try:
            return call(*arguments)
        except NVMLError as error:
            self.note(what, error)
            return None

    def text(self, what: str, call: Callable[..., str], *arguments: object) -> str | None:
        """Like ``ask``, for text that may not be UTF-8, which the binding decodes strictly."""
        try:
            return self.ask(what, call, *arguments)
        except UnicodeDecodeError as error:
            return error.object.decode(errors="replace")

    def note(self, what: str, error: Any) -> None:
        """Record that ``what`` could not be read because of ``error``."""
        if error.value in self._gone:
            raise _CardGoneError(_describe(error))
        if error.value not in _EXPECTED:
            self._costs.setdefault(_describe(error), []).append(what)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Return one line per error, with the values that could not be read."""
        return tuple(f"{error} ({', '.join(costs)})" for error, costs in self._costs.items())


def main() -> None:
    """Query and print."""
    sys.stdout.write(msgspec.json.encode(_ask_library()).decode())
    sys.stdout.flush()
    # NVML is not shut down explicitly, since that could hang; exiting the process does it.


def _ask_library() -> NvmlDocument | dict[str, str]:
    problem = _load_library()
    if problem:
        return NvmlDocument(cards=None, problems=(problem,))
    # Imported here because it takes longer than everything else on a machine without the library.
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"refused": f"NVML cannot be initialized: {_describe(error)}"}
    asker = _Asker()
    driver_version = asker.text("driver version", pynvml.nvmlSystemGetDriverVersion)
    cuda_version = asker.ask("CUDA version", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    problems: tuple[str, ...] = ()
    cards = None
    try:
        num_cards = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        problems = (f"NVML does not report the number of GPUs: {_describe(error)}",)
    else:
        if num_cards > _MAX_CARDS:
            problems = (f"NVML reports {num_cards} GPUs: only {_MAX_CARDS} were queried",)
        cards = tuple(_card(index) for index in range(min(num_cards, _MAX_CARDS)))
    return NvmlDocument(
        cards=cards,
        driver_version=driver_version,
        cuda_version=cuda_version,
        problems=problems + asker.unanswered,
    )


def _load_library() -> str:
    """Load the library for ``nvidia-ml-py``; return the reason if that fails, or empty.

    The binding itself reports a broken library as missing.
    """
    first_error = ""
    for path in (LIBRARY, *(f"{directory}/{LIBRARY}" for directory in _OTHER_DIRECTORIES)):
        if "/" in path and not Path(path).exists():
            continue
        try:
            ctypes.CDLL(path)
        except OSError as error:
            # "NAME: cannot open shared object file: No such file or directory" may name another
            # library, which this one needs.
            if not (str(error).startswith(LIBRARY) and "No such file" in str(error)):
                first_error = first_error or f"{LIBRARY} cannot be loaded: {error}"
            continue
        return ""
    return first_error or f"{LIBRARY} is not installed"


def _card(index: int) -> NvmlCard:
    import pynvml

    asker = _Asker(gone=_GONE)
    fields: dict[str, Any] = {}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        _ask_card(asker, handle, fields)
    except pynvml.NVMLError as error:
        # Without a handle nothing can be queried: the GPU cannot be used.
        return NvmlCard(index=index, problem=_describe(error))
    except _CardGoneError as gone:
        return NvmlCard(index=index, problem=str(gone), unanswered=asker.unanswered, **fields)
    return NvmlCard(index=index, unanswered=asker.unanswered, **fields)


def _ask_card(asker: _Asker, handle: object, fields: dict[str, Any]) -> None:
    """Store the values of a GPU in ``fields`` as they are read, in case the GPU is lost meanwhile.

    The address comes first.
    """
    import pynvml

    pci = asker.ask("PCI address", pynvml.nvmlDeviceGetPciInfo, handle)
    if pci is not None:
        fields["address"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        fields["chip"] = f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}"
    fields["name"] = asker.text("name", pynvml.nvmlDeviceGetName, handle)
    fields["uuid"] = asker.text("UUID", pynvml.nvmlDeviceGetUUID, handle)
    fields["memory"] = _memory(asker, handle)
    fields["num_cores"] = asker.ask("cores", pynvml.nvmlDeviceGetNumGpuCores, handle)
    fields["max_sm_clock_mhz"] = asker.ask(
        "SM clock", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM
    )
    fields["max_memory_clock_mhz"] = asker.ask(
        "memory clock", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM
    )
    fields["bus_width_bits"] = asker.ask("bus width", pynvml.nvmlDeviceGetMemoryBusWidth, handle)
    fields["compute_capability"] = asker.ask(
        "compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle
    )
    fields["vbios_version"] = asker.text("VBIOS version", pynvml.nvmlDeviceGetVbiosVersion, handle)
    modes = asker.ask("MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    if modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        fields["is_mig"] = True
        fields["instances"] = _instances(asker, handle)


def _instances(asker: _Asker, card: object) -> tuple[NvmlInstance, ...]:
    import pynvml

    num_slots = asker.ask("MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, card) or 0
    found = (_instance(asker, card, slot) for slot in range(min(num_slots, _MAX_INSTANCES)))
    return tuple(instance for instance in found if instance is not None)


def _instance(asker: _Asker, card: object, slot: int) -> NvmlInstance | None:
    """Return the instance in a slot of a GPU; None if there is none, or it has no ids."""
    import pynvml

    what = f"MIG instance in slot {slot}"
    try:
        handle = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, slot)
        gpu_instance = pynvml.nvmlDeviceGetGpuInstanceId(handle)
        compute_instance = pynvml.nvmlDeviceGetComputeInstanceId(handle)
    except pynvml.NVMLError as error:
        if error.value != _NOT_FOUND:
            asker.note(what, error)
        return None
    attributes = asker.ask(f"size of the {what}", pynvml.nvmlDeviceGetAttributes_v2, handle)
    return NvmlInstance(
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        uuid=asker.text(f"UUID of the {what}", pynvml.nvmlDeviceGetUUID, handle),
        name=asker.text(f"name of the {what}", pynvml.nvmlDeviceGetName, handle),
        memory=_memory(asker, handle),
        num_multiprocessors=None if attributes is None else attributes.multiprocessorCount,
        num_slices=None if attributes is None else attributes.gpuInstanceSliceCount,
    )


def _memory(asker: _Asker, handle: object) -> NvmlMemory:
    """Query with the call that reports the driver's reserved memory separately, or with the older
    one.

    The newer one is not in drivers before 510, and fails with error 999 under WSL.
    """
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        try:
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value in _GONE:
                asker.note("memory", error)
            return NvmlMemory(error=_describe(error))
    return NvmlMemory(total_bytes=memory.total, free_bytes=memory.free)


def _describe(error: Any) -> str:
    """Describe an error in one line. ``str(error)`` would call the library again, which might
    crash.
    """
    name = type(error).__name__.removeprefix("NVMLError_")
    return _ERRORS.get(error.value, f"NVML error {error.value} ({name})")


if __name__ == "__main__":
    main()
