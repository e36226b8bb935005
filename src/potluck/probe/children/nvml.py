"""Asks NVIDIA's management library (NVML) about every card: run in a process of its own.

``python -m potluck.probe.children.nvml`` prints an ``NvmlDocument``, or ``{"refused": reason}``
where the driver does not let NVML start, which means that it lets nothing start. It may crash, hang
and print what it likes: ``probe.child`` is ready for that.

An error costs the value that was asked for; one that says that a card is gone costs the rest of
that card. Sources: NVIDIA's NVML API reference, of the functions that ``nvidia-ml-py`` names alike.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from potluck.probe.children.nvml_document import NvmlCard, NvmlDocument, NvmlInstance, NvmlMemory

_Value = TypeVar("_Value")

LIBRARY = "libnvidia-ml.so.1"

_OTHER_DIRECTORIES = ("/usr/lib/wsl/lib", "/run/opengl-driver/lib", "/usr/local/nvidia/lib64")
"""Where WSL, NixOS and Google's containers have it if the dynamic linker was not told."""

_MAX_CARDS = 64
"""More than any machine has (the kernel driver's NV_MAX_DEVICES is 32): a count above it is a lie,
and asking for four billion handles takes for ever."""

_MAX_INSTANCES = 64
"""Likewise: a card has at most 7."""

_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15
_RESET_REQUIRED = 16
_ERRORS = {
    _NOT_SUPPORTED: "not supported",
    4: "no permission to use the NVIDIA driver",
    9: "the NVIDIA driver is not loaded",
    _FUNCTION_NOT_FOUND: "this version of the NVIDIA driver cannot tell",
    _GPU_IS_LOST: "the GPU is lost: it fell off the bus",
    _RESET_REQUIRED: "the GPU needs a reset",
    18: "NVIDIA driver/library version mismatch: reboot, or reload the nvidia module",
}
"""What NVML's error codes mean to a user; of others their name in the reference has to do."""

_EXPECTED = frozenset({_NOT_SUPPORTED, _FUNCTION_NOT_FOUND})
"""Not worth a line: this card or this driver does not have the value."""

_GONE = frozenset({_GPU_IS_LOST, _RESET_REQUIRED})


class _CardGoneError(Exception):
    """The card answers nothing any more."""


class _Asker:
    """Asks for values, and remembers which errors cost which.

    An error among ``gone`` raises ``_CardGoneError`` instead.
    """

    def __init__(self, *, gone: frozenset[int] = frozenset()) -> None:
        self._gone = gone
        self._costs: dict[str, list[str]] = {}

    def ask(self, what: str, call: Callable[..., _Value], *arguments: object) -> _Value | None:
        """What ``call`` returns, or None."""
        from pynvml import NVMLError

        try:
            return call(*arguments)
        except NVMLError as error:
            self.note(what, error)
            return None

    def text(self, what: str, call: Callable[..., str], *arguments: object) -> str | None:
        """The same for a text, which may be no UTF-8: the binding decodes it strictly."""
        try:
            return self.ask(what, call, *arguments)
        except UnicodeDecodeError as error:
            return error.object.decode(errors="replace")

    def note(self, what: str, error: Any) -> None:
        """Count what an error cost."""
        if error.value in self._gone:
            raise _CardGoneError(_describe(error))
        if error.value not in _EXPECTED:
            self._costs.setdefault(_describe(error), []).append(what)

    @property
    def unanswered(self) -> tuple[str, ...]:
        """A line for each error: it, and what it cost."""
        return tuple(f"{error} ({', '.join(costs)})" for error, costs in self._costs.items())


def main() -> None:
    """Ask and print."""
    sys.stdout.write(msgspec.json.encode(_ask_library()).decode())
    sys.stdout.flush()
    # NVML is not shut down: the end of the process does that, and cannot hang in it.


def _ask_library() -> NvmlDocument | dict[str, str]:
    problem = _load_library()
    if problem:
        return NvmlDocument(cards=None, problems=(problem,))
    # Imported here since it takes longer than all else that a machine without the library needs.
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return {"refused": f"NVML does not start: {_describe(error)}"}
    asker = _Asker()
    driver_version = asker.text("driver version", pynvml.nvmlSystemGetDriverVersion)
    cuda_version = asker.ask("CUDA version", pynvml.nvmlSystemGetCudaDriverVersion_v2)
    problems: tuple[str, ...] = ()
    cards = None
    try:
        num_cards = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        problems = (f"NVML does not count the cards: {_describe(error)}",)
    else:
        if num_cards > _MAX_CARDS:
            problems = (f"NVML counts {num_cards} cards: only {_MAX_CARDS} were asked",)
        cards = tuple(_card(index) for index in range(min(num_cards, _MAX_CARDS)))
    return NvmlDocument(
        cards=cards,
        driver_version=driver_version,
        cuda_version=cuda_version,
        problems=problems + asker.unanswered,
    )


def _load_library() -> str:
    """Load the library, so that ``nvidia-ml-py`` finds it loaded; why that failed, or nothing.

    The binding itself reports a library that is broken as one that is not there.
    """
    first_error = ""
    for path in (LIBRARY, *(f"{directory}/{LIBRARY}" for directory in _OTHER_DIRECTORIES)):
        if "/" in path and not Path(path).exists():
            continue
        try:
            ctypes.CDLL(path)
        except OSError as error:
            # "NAME: cannot open shared object file: No such file or directory" has the name of
            # a library that this one needs where it is that one that is missing.
            if not (str(error).startswith(LIBRARY) and "No such file" in str(error)):
                first_error = first_error or f"{LIBRARY} is broken: {error}"
            continue
        return ""
    return first_error or f"{LIBRARY} is not installed"


def _card(index: int) -> NvmlCard:
    import pynvml

    asker = _Asker(gone=_GONE)
    told: dict[str, Any] = {}
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        _ask_card(asker, handle, told)
    except pynvml.NVMLError as error:
        # Without a handle there is nothing to ask: the card cannot be used.
        return NvmlCard(index=index, problem=_describe(error))
    except _CardGoneError as gone:
        return NvmlCard(index=index, problem=str(gone), unanswered=asker.unanswered, **told)
    return NvmlCard(index=index, unanswered=asker.unanswered, **told)


def _ask_card(asker: _Asker, handle: object, told: dict[str, Any]) -> None:
    """Put what a card says into ``told`` as it comes, the address first: the card may get lost."""
    import pynvml

    pci = asker.ask("PCI address", pynvml.nvmlDeviceGetPciInfo, handle)
    if pci is not None:
        told["address"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        told["chip"] = f"{pci.pciDeviceId & 0xFFFF:04x}:{pci.pciDeviceId >> 16:04x}"
    told["name"] = asker.text("name", pynvml.nvmlDeviceGetName, handle)
    told["uuid"] = asker.text("UUID", pynvml.nvmlDeviceGetUUID, handle)
    told["memory"] = _memory(asker, handle)
    told["num_cores"] = asker.ask("cores", pynvml.nvmlDeviceGetNumGpuCores, handle)
    told["max_sm_clock_mhz"] = asker.ask(
        "SM clock", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM
    )
    told["max_memory_clock_mhz"] = asker.ask(
        "memory clock", pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_MEM
    )
    told["bus_width_bits"] = asker.ask("bus width", pynvml.nvmlDeviceGetMemoryBusWidth, handle)
    told["compute_capability"] = asker.ask(
        "compute capability", pynvml.nvmlDeviceGetCudaComputeCapability, handle
    )
    told["vbios_version"] = asker.text("VBIOS version", pynvml.nvmlDeviceGetVbiosVersion, handle)
    modes = asker.ask("MIG mode", pynvml.nvmlDeviceGetMigMode, handle)
    if modes is not None and modes[0] == pynvml.NVML_DEVICE_MIG_ENABLE:
        told["is_mig"] = True
        told["instances"] = _instances(asker, handle)


def _instances(asker: _Asker, card: object) -> tuple[NvmlInstance, ...]:
    import pynvml

    num_slots = asker.ask("MIG instances", pynvml.nvmlDeviceGetMaxMigDeviceCount, card) or 0
    found = (_instance(asker, card, slot) for slot in range(min(num_slots, _MAX_INSTANCES)))
    return tuple(instance for instance in found if instance is not None)


def _instance(asker: _Asker, card: object, slot: int) -> NvmlInstance | None:
    """The instance in a slot of a card; None where there is none, or it has no ids."""
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
    """By the call that counts what the driver reserves apart, or by the older one.

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
    """In one line. ``str(error)`` would ask the library again, which need not survive that."""
    name = type(error).__name__.removeprefix("NVMLError_")
    return _ERRORS.get(error.value, f"NVML's error {error.value} ({name})")


if __name__ == "__main__":
    main()
