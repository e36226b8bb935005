"""Machines that umockdev plays, with OpenCL drivers that are built here: what the probe joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.machines.icds import MALI, NVIDIA, build_icd
from support.machines.whole_machine import Document, examine_machine
from support.schemas import validate_document


def examined(machine: str, vendors: Path, monkeypatch: pytest.MonkeyPatch) -> Document:
    monkeypatch.setenv("OCL_ICD_VENDORS", str(vendors))
    document = examine_machine(machine)
    validate_document(document["probe"])
    return document


def devices(document: Document) -> dict[str, Any]:
    return {
        each["device_id"]: each
        for detector in document["probe"]["detectors"]
        for each in detector["devices"]
    }


def addresses(device: Document, api: str = "opencl") -> list[str]:
    return [each["address"] for each in device["interfaces"] if each["api"] == api]


def test_a_board_with_its_maker_s_driver_and_mesa_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_icd("gpu", tmp_path)
    mesa = build_icd("computing-gpu", tmp_path, platform="rusticl", vendor="Mesa").rename(
        tmp_path / "a-rusticl.icd"
    )
    document = examined("rk3588-kbase", tmp_path, monkeypatch)
    found = devices(document)
    assert list(found) == ["cpu", "of-fb000000.gpu", "of-fdab0000.npu"]
    mali = found["of-fb000000.gpu"]
    assert addresses(mali) == [f"{tmp_path}/gpu.icd#0:0", f"{mesa}#0:0"]
    assert mali["name"] == "Mali-G610"
    assert mali["interfaces"][0]["description"].startswith("Mali-G610 r0p0, driver 3.0, 4 units")
    assert document["doctor"]["lines"] == ["no problems found"]


def test_cards_by_their_places_and_software_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_icd("gpu", tmp_path, **NVIDIA, nv="0 2 0 0", is_shared="0").rename(
        tmp_path / "nvidia.icd"
    )
    build_icd("pocl", tmp_path)
    build_icd("crashes-at-load", tmp_path)
    document = examined("pc-two-nvidia-one-amd", tmp_path, monkeypatch)
    found = devices(document)
    assert list(found) == ["cpu", *(f"pci-0000:0{n}:00.0" for n in (1, 2, 3)), "opencl-pocl-0"]
    assert addresses(found["pci-0000:01:00.0"]) == []
    assert addresses(found["pci-0000:01:00.0"], "cuda") == ["0000:01:00.0"]
    assert addresses(found["pci-0000:02:00.0"]) == [f"{tmp_path}/nvidia.icd#0:0"]
    assert addresses(found["pci-0000:03:00.0"], "kfd") == ["0"]
    assert found["opencl-pocl-0"]["is_software"]
    table = "\n".join(document["table"])
    assert "  kind     software emulation on the CPU\n" in table
    assert f"opencl: {tmp_path}/crashes-at-load.icd: was killed by SIGABRT" in document["table"]
    assert not [trial for trial in document["probe"]["trials"] if "opencl-" in trial["device_id"]]


def test_without_a_bus_opencl_s_devices_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_icd("gpu", tmp_path, **MALI)
    (device_id, mali) = list(devices(examined("empty-sys", tmp_path, monkeypatch)).items())[1]
    assert device_id == "opencl-gpu-0"
    assert (mali["make"], mali["name"], mali["driver"]) == ("Arm Mali", "Mali-G610 r0p0", "")
    assert mali["problem"] == ""
