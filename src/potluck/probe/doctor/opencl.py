"""OpenCL finds vendors' libraries by ``/etc/OpenCL/vendors/*.icd`` (cl_khr_icd)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from potluck.probe.doctor.case import Case, title
from potluck.probe.doctor.finding import Finding
from potluck.probe.doctor.libraries import libraries

_VENDORS = "/etc/OpenCL/vendors"


def unregistered_mali(case: Case) -> Iterator[Finding]:
    """A Mali whose vendor's library is there, but not registered with OpenCL."""
    devices = [each for each in case.accelerators if each.driver == "mali"]
    found = [*libraries(case, r"lib[mM]ali(OpenCL)?\.so(\.\d+)*")]
    if not devices or not found or any(_is_mali(case, text) for text in _registered(case)):
        return
    library = min(found, key=_preference)
    yield Finding(
        check="opencl",
        severity=case.severity(devices[0]),
        message=f"{title(devices[0])}: its library {library} is not registered with OpenCL",
        command=(f"sudo mkdir -p {_VENDORS} && echo {library} | sudo tee {_VENDORS}/mali.icd"),
        device_id=devices[0].device_id,
    )


def _registered(case: Case) -> Iterator[str]:
    """The first line of each file: a library's name or path."""
    for file in case.system.entries(case.below_files(_VENDORS)):
        if file.suffix == ".icd" and (text := case.system.text(file)):
            yield text.splitlines()[0].strip()


def _is_mali(case: Case, text: str) -> bool:
    """Whether an entry names a Mali library; one by path must be there too."""
    path = PurePosixPath(text)
    if "mali" not in path.name.lower():
        return False
    return not path.is_absolute() or case.below_files(text).exists()


def _preference(library: PurePosixPath) -> tuple[bool, int, str]:
    """The one for OpenCL alone, then the name that updates leave as it is (``libmali.so.1``)."""
    return "OpenCL" not in library.name, len(library.name), str(library)
