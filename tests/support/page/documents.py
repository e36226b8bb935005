"""Made-up documents for the views of the page: clusters of 1, 3 and 14 nodes, and what they do.

They have the schemas of the documents that an agent serves. Everything is a function of the number
of nodes and of the time, so that two screenshots of one view can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from support.machines import hardware

from potluck.types.backend import DeviceKind
from potluck.types.hardware import CpuFacts, DetectorReport, DeviceMemory, ProbeReport, Trial
from potluck.types.memory import MemoryFacts, MemoryLimit

GIB = 2**30
MIB = 2**20
START = 1_795_480_000.0
"""The time of the newest event and of the last sample, in seconds since 1970."""

HOSTILE = '<img src=x onerror="document.title=1">'
"""A name that runs a script on a page that takes it for markup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """One machine: ``gpu`` is the name and memory of a GPU with a unit of its own."""

    name: str
    cpu: str
    architecture: str
    num_cores: int
    gib: float
    free_gib: float
    host: str = ""
    gpu: tuple[str, float] | None = None
    state: str = "ready"


_MACHINES = (
    _Machine(
        name="desktop",
        cpu="AMD Ryzen 9 7900X 12-Core Processor",
        architecture="x86_64",
        num_cores=24,
        gib=62.7,
        free_gib=38.1,
        gpu=("NVIDIA GeForce RTX 3090", 24),
    ),
    _Machine(
        name="workstation",
        cpu="Intel(R) Xeon(R) w5-2455X",
        architecture="x86_64",
        num_cores=24,
        gib=125.4,
        free_gib=71.9,
    ),
    _Machine(
        name="laptop",
        cpu="13th Gen Intel(R) Core(TM) i7-1360P",
        architecture="x86_64",
        num_cores=16,
        gib=15.4,
        free_gib=4.2,
    ),
    _Machine(
        name="nas.home.example.org",
        cpu="Intel(R) Celeron(R) J4125 CPU @ 2.00GHz",
        architecture="x86_64",
        num_cores=4,
        gib=7.6,
        free_gib=5.1,
    ),
    _Machine(
        name="pi-1", cpu="Cortex-A76", architecture="aarch64", num_cores=4, gib=7.9, free_gib=2.0
    ),
    _Machine(
        name="pi-2", cpu="Cortex-A76", architecture="aarch64", num_cores=4, gib=7.9, free_gib=2.1
    ),
    _Machine(
        name="pi-3",
        cpu="Cortex-A76",
        architecture="aarch64",
        num_cores=4,
        gib=3.9,
        free_gib=3.1,
        state="silent",
    ),
    _Machine(
        name="rock5b",
        cpu="Cortex-A76 + Cortex-A55",
        architecture="aarch64",
        num_cores=8,
        gib=15.6,
        free_gib=6.0,
        gpu=("Mali-G610 MC4", 0),
    ),
    _Machine(
        name="old-server",
        cpu="Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        architecture="x86_64",
        num_cores=28,
        gib=251.8,
        free_gib=120.5,
        host="old-server",
    ),
    _Machine(
        name="old-server",
        cpu="Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz",
        architecture="x86_64",
        num_cores=28,
        gib=251.8,
        free_gib=120.5,
        host="old-server",
    ),
    _Machine(
        name="mini-1", cpu="Intel(R) N100", architecture="x86_64", num_cores=4, gib=15.5, free_gib=9
    ),
    _Machine(
        name="mini-2",
        cpu="Intel(R) N100",
        architecture="x86_64",
        num_cores=4,
        gib=15.5,
        free_gib=11.2,
        state="draining",
    ),
    _Machine(
        name="gaming-pc",
        cpu="AMD Ryzen 5 5600X 6-Core Processor",
        architecture="x86_64",
        num_cores=12,
        gib=31.3,
        free_gib=18.8,
        gpu=("AMD Radeon RX 6700 XT", 12),
    ),
    _Machine(
        name="thinkpad",
        cpu="Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz",
        architecture="x86_64",
        num_cores=8,
        gib=7.6,
        free_gib=1.3,
    ),
)

_SPEEDS = (24.0, 38.0, 19.0, 4.2, 7.9, 7.8, 7.5, 9.1, 21.0, 20.5, 8.4, 8.1, 26.0, 9.9)
"""Gigabytes per second that each machine's CPU reads."""


def node_id(index: int) -> str:
    """Return the id of a node."""
    return f"{(index + 1) * 0x1B2D_53A7_9E41_0C65 % 2**64:016x}"


def cluster_document(
    num_nodes: int, *, is_loading: bool = False, hostile: bool = False
) -> dict[str, Any]:
    """Return a document of schema ``potluck.cluster/1``.

    With ``is_loading`` the last model is being loaded, else it is degraded. With ``hostile`` the
    first machine and the first model have a name with markup.
    """
    deployments = list(_deployments(num_nodes, is_loading=is_loading))
    nodes = [_node(index, deployments) for index in range(num_nodes)]
    if hostile:
        nodes[0]["name"] = HOSTILE
        deployments[0]["model_id"] = HOSTILE
    return {
        "schema": "potluck.cluster/1",
        "node_id": node_id(0),
        "wire_version": 7,
        "nodes": nodes,
        "incompatible": [{"node_id": "feedfacecafebeef", "wire_version": 5}]
        if num_nodes > 3
        else [],
        "deployments": deployments,
        "links": list(_links(num_nodes)),
    }


def model_ids(num_nodes: int) -> list[str]:
    """Return what the deployed models are called."""
    return [each["model_id"] for each in _deployments(num_nodes, is_loading=False)]


def _figure(value: float | None, source: str = "") -> dict[str, Any]:
    origin = "unknown" if value is None else "measured"
    return {"value": value, "origin": origin, "source": source or "in no table; not measured"}


def _node(index: int, deployments: list[dict[str, Any]]) -> dict[str, Any]:
    machine = _MACHINES[index]
    if machine.state == "silent":
        return {"node_id": node_id(index), "state": "silent"}
    total = int(machine.gib * GIB)
    free = int(machine.free_gib * GIB)
    held = [
        {
            "deployment": deployment["deployment"],
            "unit_id": stage["unit_id"],
            "start_layer": stage["start_layer"],
            "end_layer": stage["end_layer"],
            "part": stage["part"],
            "epoch": deployment["epoch"],
            "num_bytes": 0 if stage["memory"]["is_on_device"] else stage["num_bytes"],
            "device_bytes": stage["num_bytes"] if stage["memory"]["is_on_device"] else 0,
            "is_mapped": False,
        }
        for deployment in deployments
        for stage in (*deployment["stages"], *deployment["spares"])
        if stage["node_id"] == node_id(index) and "memory" in stage
    ]
    return {
        "node_id": node_id(index),
        "state": machine.state,
        "name": machine.name,
        "address": f"192.168.1.{20 + index}:7001",
        "http_address": f"http://192.168.1.{20 + index}:8080",
        "version": "0.1.0",
        "host_id": machine.host or f"host-{index}",
        "available_bytes": free,
        "available_reason": _FREE,
        "memory_limit_bytes": None if index % 5 else total // 2,
        "held": held,
        "units": _units(index, free),
        "hardware": _hardware(index, total, free),
    }


_FREE = "free on this machine, less a reserve of 512 MiB for the system"


def _hardware(index: int, total: int, free: int) -> dict[str, Any]:
    machine = _MACHINES[index]
    cpu = hardware.device("cpu", DeviceKind.CPU)
    devices = [replace(cpu, name=machine.cpu, memory=_memory(total, is_shared=True))]
    if machine.gpu is not None:
        name, gib = machine.gpu
        memory = _memory(int(gib * GIB) or None, is_shared=not gib)
        devices.append(replace(hardware.device("gpu-0"), name=name, memory=memory))
    report = ProbeReport(
        host_name=machine.name,
        kernel="6.12.48",
        container="",
        cpu=CpuFacts(
            name=machine.cpu,
            architecture=machine.architecture,
            num_cores=machine.num_cores,
            num_usable_cores=machine.num_cores,
            usable_reason="all",
        ),
        memory=MemoryFacts(
            total_bytes=total,
            free_bytes=free + 512 * MIB,
            reserve_bytes=512 * MIB,
            usable=MemoryLimit(bytes=free, reason=_FREE),
        ),
        detectors=(DetectorReport(detector="cpu", devices=tuple(devices)),),
        trials=(Trial(device_id="cpu", backend="native", works=True),),
        is_complete=True,
    )
    shown: dict[str, Any] = msgspec.to_builtins(report)
    return shown


def _memory(total_bytes: int | None, *, is_shared: bool) -> DeviceMemory:
    return DeviceMemory(
        total_bytes=total_bytes, free_bytes=None, is_shared=is_shared, source="made up"
    )


def _units(index: int, free: int) -> list[dict[str, Any]]:
    machine = _MACHINES[index]
    rate = _SPEEDS[index]
    has_own_gpu = machine.gpu is not None and machine.gpu[1] > 0
    units = [
        {
            "unit_id": "cpu/native",
            "backend": "native",
            "description": machine.cpu,
            "role": "reserve" if has_own_gpu else "serves",
            "reason": "gpu-0/tinygrad is faster" if has_own_gpu else "",
            "usable_bytes": free,
            "is_shared": True,
            "num_threads": max(1, machine.num_cores // 2),
            "rates": {
                "decode_tokens_per_second": _figure(rate * 11, "2 layers of 2048 in Q8_0"),
                "prefill_tokens_per_second": _figure(rate * 40, "2 layers of 2048 in Q8_0"),
            },
            "arithmetics": ["exact"],
        }
    ]
    if machine.gpu is not None:
        name, gib = machine.gpu
        units.append(
            {
                "unit_id": "gpu-0/tinygrad",
                "backend": "tinygrad",
                "description": name,
                "role": "serves" if gib else "out",
                "reason": ""
                if gib
                else "the backend's test failed: the driver gave up after 20 s (clBuildProgram)",
                "usable_bytes": int(gib * 0.6 * GIB),
                "is_shared": not gib,
                "num_threads": 1,
                "rates": {
                    "decode_tokens_per_second": _figure(2100.0 if gib else None),
                    "prefill_tokens_per_second": _figure(9500.0 if gib else None),
                },
                "arithmetics": [],
            }
        )
    return units


_Place = tuple[int, str, int, int, tuple[int, tuple[int, ...]] | None]
"""Node, unit, first layer, end of its layers, and the member and shares of a group."""

_PLACES: dict[int, tuple[tuple[_Place, ...], ...]] = {
    1: (((0, "gpu-0/tinygrad", 0, 36, None),),),
    3: (
        (
            (0, "gpu-0/tinygrad", 0, 26, None),
            (1, "cpu/native", 26, 40, None),
            (2, "cpu/native", 40, 48, None),
        ),
        ((1, "cpu/native", 0, 28, None),),
    ),
    14: (
        (
            (0, "gpu-0/tinygrad", 0, 30, None),
            (1, "cpu/native", 30, 44, (0, (2, 1, 1))),
            (8, "cpu/native", 30, 44, (1, (2, 1, 1))),
            (9, "cpu/native", 30, 44, (2, (2, 1, 1))),
            (12, "gpu-0/tinygrad", 44, 62, None),
            (12, "cpu/native", 62, 66, None),
            (10, "cpu/native", 66, 70, None),
            (2, "cpu/native", 70, 75, None),
            (7, "cpu/native", 75, 80, None),
        ),
        (
            (4, "cpu/native", 0, 14, None),
            (5, "cpu/native", 14, 28, None),
            (4, "cpu/native", 28, 36, None),
        ),
        ((13, "cpu/native", 0, 16, None), (11, "cpu/native", 16, 24, None)),
    ),
}

_MODELS = (
    ("org/Large-70B-Instruct-GGUF:large-70b-q4_k_m.gguf", "large-70b", 512 * MIB, "none"),
    ("org/Small-4B-Instruct", "small-4b", 140 * MIB, "q8_0"),
    ("/srv/models/code-1.5b", "code-1.5b-with-quite-a-long-name-that-must-wrap", 60 * MIB, "q4_k"),
)


def _deployments(num_nodes: int, *, is_loading: bool) -> Iterator[dict[str, Any]]:
    plans = _PLACES[num_nodes]
    for index, places in enumerate(plans):
        is_last = index == len(plans) - 1 and (len(plans) > 1 or is_loading)
        state = "ready"
        if is_last and (is_loading or num_nodes > 3):
            state = "loading" if is_loading else "degraded"
        yield _deployment(index, places, state)


def _hop(sender: int, receiver: int) -> float:
    """Return the latency of a link: Wi-Fi for the laptops, less within a machine."""
    first, second = _MACHINES[sender], _MACHINES[receiver]
    if first.host and first.host == second.host:
        return 0.000_031
    slow = {"laptop", "thinkpad", "pi-1"}
    base = 0.002_4 if slow & {first.name, second.name} else 0.000_19
    return base * (1 + (sender * 7 + receiver * 3) % 10 / 20)


def _stage_seconds(place: _Place, layer_bytes: int) -> float:
    node, unit, start, end, part = place
    rate = (600.0 if unit.startswith("gpu") else _SPEEDS[node]) * 1e9
    share = 1.0
    if part is not None:
        member, shares = part
        share = shares[member] / sum(shares)
    return (end - start) * layer_bytes * share / rate + 0.000_2


def _stage(
    index: int, places: tuple[_Place, ...], layer_bytes: int, *, is_ready: bool
) -> dict[str, Any]:
    node, unit, start, end, part = places[index]
    is_on_device = unit.startswith("gpu")
    shares = (1,) if part is None else part[1]
    own = shares[0 if part is None else part[0]] / sum(shares)
    weights = int((end - start) * layer_bytes * own)
    memory: dict[str, Any] = {
        "weights": {"q4_k": weights * 3 // 4, "q6_k": weights // 4},
        "cache_bytes": weights // 6,
        "state_bytes": 0,
        "rope_bytes": 4 * MIB,
        "scratch_bytes": 96 * MIB,
        "staging_bytes": 32 * MIB,
        "process_bytes": 52 * MIB,
        "is_on_device": is_on_device,
    }
    parts = [value for value in memory.values() if isinstance(value, int)]
    seconds = _stage_seconds(places[index], layer_bytes)
    receiver = places[(index + 1) % len(places)][0]
    lateness = (1.04, 0.93, 1.31, 1.02, 0.98, 1.1, 1.0, 2.3, 1.05)[index % 9]
    return {
        "stage": index,
        "node_id": node_id(node),
        "unit_id": unit,
        "start_layer": start,
        "end_layer": end,
        "part": None if part is None else {"member": part[0], "shares": list(part[1])},
        "num_bytes": sum(parts) + weights,
        "memory": memory,
        "read_bytes": weights if is_ready else None,
        "load_seconds": weights / 3e8 if is_ready else None,
        "progress": None,
        "predicted": {
            "decode_seconds": seconds,
            "exchange_seconds": 0.0 if part is None else seconds * 0.2,
            "loaded_seconds": seconds * 1.4,
            "prefill_seconds_per_token": seconds / 7,
            "hop_seconds": _hop(node, receiver),
            "basis": ("served", "measured", "table", "assumed")[index % 4],
        },
        "measured": {
            "decode_seconds": seconds * lateness if is_ready else None,
            "loaded_seconds": seconds * 1.5 if is_ready and index % 2 else None,
            "prefill_seconds_per_token": seconds / 6 if is_ready else None,
        },
    }


def _deployment(index: int, places: tuple[_Place, ...], state: str) -> dict[str, Any]:
    model, model_id, layer_bytes, quantization = _MODELS[index]
    is_ready = state == "ready"
    stages = [_stage(each, places, layer_bytes, is_ready=is_ready) for each in range(len(places))]
    if state == "loading":
        _show_loading(stages)
    token_seconds = sum(
        each["predicted"]["decode_seconds"] + each["predicted"]["hop_seconds"]
        for each in stages
        if each["part"] is None or each["part"]["member"] == 0
    )
    total = sum(sum(each["memory"]["weights"].values()) for each in stages)
    slowest = max(range(len(stages)), key=lambda each: stages[each]["predicted"]["loaded_seconds"])
    return {
        "deployment": f"{0x58DE142F + index * 0x111111:08x}",
        "model": model,
        "model_id": model_id,
        "state": state,
        "reason": {
            "ready": "",
            "loading": "loading",
            "degraded": f"stage 1 at node {stages[-1]['node_id']} is lost; looking for another",
        }[state],
        "epoch": {"number": 3, "coordinator": stages[0]["node_id"]},
        "has_quorum": True,
        "created": int(START) - 7200,
        "context_tokens": 8192,
        "cache_tokens": 32768,
        "num_states": 0,
        "num_layers": places[-1][3],
        "quantization": quantization,
        "is_mapped": False,
        "cache_disk_bytes": 0,
        "arithmetic": "exact",
        "arithmetic_note": "",
        "done_bytes": total if is_ready else int(total * 0.37),
        "total_bytes": total,
        "recovery_wait_seconds": 60.0,
        "num_recoveries": 1 if len(places) > 3 else 0,
        "recovery_seconds": 1.34 if len(places) > 3 else None,
        "num_spares": 0,
        "objective": "latency",
        "num_streams": 8,
        "tensor_parallel": None,
        "layout": [],
        "rebalance": "auto",
        "rebalance_threshold": 0.2,
        "rebalance_note": "",
        "keep_weights": True,
        "verification": "pending" if state == "loading" else None,
        "prefix_cache": True,
        "target_step_ms": 200.0,
        "draft": "ngram",
        "tool_format": None,
        "remarks": ["2 of 48 weights stay in f16: their columns are no multiple of 256"]
        if quantization != "none"
        else [],
        "transfers": list(_transfers(stages)) if state == "loading" else [],
        "prediction": {
            "token_seconds": token_seconds,
            "tokens_per_second": 1 / token_seconds,
            "num_streams": 8,
            "total_tokens_per_second": 3.4 / token_seconds,
            "steps_in_flight": 4,
            "bottleneck": slowest,
            "first_token_seconds": token_seconds * 80,
            "prompt_tokens": 512,
            "entry_seconds": 0.000_16,
            "margin": 0.25,
            "gap": 0.0,
        },
        "measured": {
            "tokens_per_second": 0.94 / token_seconds if is_ready else None,
            "total_tokens_per_second": 2.2 / token_seconds if is_ready and index == 0 else None,
            "num_streams": 5 if is_ready and index == 0 else None,
            "first_token_seconds": token_seconds * 31 if is_ready else None,
            "num_first_tokens": 37 if is_ready else None,
        },
        "stages": stages,
        "rejections": [
            {
                "node_id": node_id(3),
                "unit_id": "cpu/native",
                "reason": "it would make each token 41 ms later",
            }
        ]
        if len(places) > 3
        else [],
        "refused": [],
        "spares": [],
        "slow_stages": [{"stage": 7, "node_id": stages[7]["node_id"], "slowdown": 2.3}]
        if len(stages) > 7
        else [],
    }


def _show_loading(stages: list[dict[str, Any]]) -> None:
    """Have every second stage loaded, and the others at different points on the way."""
    for index, stage in enumerate(stages):
        total = sum(stage["memory"]["weights"].values())
        if index % 2:
            stage |= {"read_bytes": total, "load_seconds": total / 3e8}
            continue
        doing, share = (("loading", 0.42), ("fetching", 0.07), ("warming up", 1.0))[index // 2 % 3]
        stage["progress"] = {
            "doing": doing,
            "done_bytes": int(total * share),
            "total_bytes": total,
        }


def _transfers(stages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for index, stage in enumerate(stages):
        total = sum(stage["memory"]["weights"].values())
        done = total if index == 1 else int(total * (0.42, 1.0, 0.08)[index % 3])
        by_source = {"hub": done - done // 3, "disk": done // 3}
        if index == 1:
            by_source = {node_id(0): done}
        yield {
            "node_id": stage["node_id"],
            "done_bytes": done,
            "total_bytes": total,
            "by_source": by_source,
            "bytes_per_second": 0.0 if done == total else 43.2e6,
            "seconds_left": None if index == 2 else (total - done) / 43.2e6,
        }


def _links(num_nodes: int) -> Iterator[dict[str, Any]]:
    present = [each for each in range(num_nodes) if _MACHINES[each].state != "silent"]
    for sender in present:
        for receiver in present:
            if sender == receiver or (sender * receiver) % 11 == 6:  # not measured yet
                continue
            latency = _hop(sender, receiver)
            yield {
                "from": node_id(sender),
                "to": node_id(receiver),
                "latency_seconds": latency,
                "bytes_per_second": 2.1e9 if latency < 1e-4 else 0.022 / latency * 1e6,
                "num_samples": 5,
                "age_seconds": 40.0 + sender * 3,
            }


def access_document(
    *, can_administer: bool, key_name: str | None = None, needs_key: bool = False
) -> dict[str, Any]:
    """Return a document of schema ``potluck.access/1``."""
    return {
        "schema": "potluck.access/1",
        "needs_key": needs_key,
        "key_name": key_name,
        "can_administer": can_administer,
        "version": "0.1.0",
        "node_id": node_id(0),
        "host_name": _MACHINES[0].name,
    }


def event_documents(num_nodes: int) -> list[dict[str, Any]]:
    """Return events in the order in which they happened."""
    models = model_ids(num_nodes)
    first = models[0]
    entries: list[tuple[str, str, str | None, int | None, dict[str, Any]]] = [
        ("joined", "The node desktop joined.", None, 0, {}),
        ("deploying", f"{first} is being deployed.", first, 0, {}),
        ("ready", f"{first} is ready.", first, 0, {}),
    ]
    if num_nodes > 1:
        moved = [
            {"stage": 1, "from": node_id(1), "to": node_id(2)},
            {"stage": 2, "from": node_id(1), "to": node_id(0)},
        ]
        lost = "The node laptop is lost: nothing was heard of it for 3 s."
        paused = {"paused_seconds": 1.34, "moved": moved}
        entries += [
            ("joined", "The node workstation joined.", None, 1, {}),
            ("joined", "The node laptop joined.", None, 2, {}),
            ("lost", lost, None, 2, {}),
            ("degraded", f"{first} lost stage 2.", first, 2, {}),
            ("recovered", f"{first} is ready again after 1.3 s.", first, 0, paused),
            ("joined", "The node laptop joined.", None, 2, {}),
            ("rebalanced", f"{first} moved.", first, 0, {"moved": moved[:1], "gain": 0.28}),
            (
                "unit_out",
                "The unit gpu-0/tinygrad of workstation is out: a step took more than 20 s.",
                None,
                1,
                {"unit_id": "gpu-0/tinygrad"},
            ),
            ("unit_back", "The unit gpu-0/tinygrad of workstation is back.", None, 1, {}),
            ("failed", f"{models[-1]} does not fit: 3.1 GiB are missing.", models[-1], None, {}),
            ("left", "The node laptop left.", None, 2, {}),
            ("undeployed", "old-model was undeployed.", "old-model", None, {}),
        ]
    repeats = 1 if num_nodes < 14 else 6
    events = entries * repeats
    return [
        {
            "id": number + 1,
            "time": START - (len(events) - 1 - number) * 197.0,
            "kind": kind,
            "message": message,
            "model_id": model_id,
            "node_id": None if node is None else node_id(node),
            "details": details,
        }
        for number, (kind, message, model_id, node, details) in enumerate(events)
    ]


def sample_document(num_nodes: int, time: float) -> dict[str, Any]:
    """Return what happened in the second that ends at ``time``."""
    return {
        "time": time,
        "models": {
            each["model_id"]: _model_sample(each, index, time)
            for index, each in enumerate(_deployments(num_nodes, is_loading=False))
        },
    }


def _model_sample(deployment: dict[str, Any], index: int, time: float) -> dict[str, Any]:
    stages = deployment["stages"]
    wave = 0.5 + 0.5 * math.sin(time / 47 + index)
    jitter = math.sin(time * 1.7 + index) * 0.06
    is_busy = deployment["state"] == "ready" and math.sin(time / 311 + index + 1) > -0.6
    speed = deployment["prediction"]["tokens_per_second"] * (1 + 2 * wave + jitter)
    slowest = max(each["predicted"]["decode_seconds"] for each in stages)
    has_first = is_busy and int(time) % 5 == 0
    first = deployment["prediction"]["first_token_seconds"] / 8 * (1 + wave / 2 + jitter)
    return {
        "tokens_per_second": speed if is_busy else None,
        "first_token_seconds": first if has_first else None,
        "num_running": 1 + int(wave * 4) if is_busy else 0,
        "num_waiting": max(0, int(wave * 7) - 4) if is_busy else 0,
        "cache_hit_share": 0.55 + 0.3 * wave if has_first else None,
        "draft_acceptance": 0.35 + 0.2 * wave + jitter if is_busy and index == 0 else None,
        "stage_seconds": [
            each["predicted"]["decode_seconds"] * (1 + jitter + number / 30) if is_busy else None
            for number, each in enumerate(stages)
        ],
        "stage_busy": [
            min(1.0, each["predicted"]["decode_seconds"] / slowest * (0.55 + 0.3 * wave))
            if is_busy
            else 0.0
            for each in stages
        ],
        "cache_used_share": 0.1 + 0.5 * wave if is_busy else 0.0,
    }


def series_document(num_nodes: int, seconds: int) -> dict[str, Any]:
    """Return a document of schema ``potluck.series/1`` that ends at ``START``."""
    times = [START - seconds + 1 + each for each in range(seconds)]
    models: dict[str, Any] = {}
    samples = [sample_document(num_nodes, time)["models"] for time in times]
    for model_id, first in samples[0].items():
        models[model_id] = {
            name: [each[model_id][name] for each in samples]
            for name, value in first.items()
            if not isinstance(value, list)
        }
        models[model_id] |= {
            name: [[each[model_id][name][stage] for each in samples] for stage in range(len(value))]
            for name, value in first.items()
            if isinstance(value, list)
        }
    return {"schema": "potluck.series/1", "step_seconds": 1, "times": times, "models": models}


_PLAN_FIELDS = (
    "model",
    "context_tokens",
    "cache_tokens",
    "num_states",
    "num_layers",
    "quantization",
    "is_mapped",
    "arithmetic",
    "arithmetic_note",
    "remarks",
    "prediction",
)


def plan_document(num_nodes: int) -> dict[str, Any]:
    """Return a document of schema ``potluck.plan/1``."""
    cluster = cluster_document(num_nodes)
    deployment = cluster["deployments"][0]
    stages = [
        {
            **{name: value for name, value in stage.items() if name not in _LOADED},
            "usable_bytes": int(stage["num_bytes"] * 1.6),
        }
        for stage in deployment["stages"]
    ]
    used = {(each["node_id"], each["unit_id"]) for each in stages}
    rejections = [
        {
            "node_id": node["node_id"],
            "unit_id": unit["unit_id"],
            "reason": unit["reason"] or "a token would take longer with it",
            "added_seconds": None if unit["reason"] else 0.041,
        }
        for node in cluster["nodes"]
        for unit in node.get("units", ())
        if (node["node_id"], unit["unit_id"]) not in used
    ]
    prediction = deployment["prediction"]
    return {
        "schema": "potluck.plan/1",
        **{name: deployment[name] for name in _PLAN_FIELDS},
        "objective": "latency",
        "num_streams": 8,
        "has_layout": False,
        "coordinator": node_id(0),
        "nodes": [
            {"node_id": each["node_id"], "name": each.get("name", "")} for each in cluster["nodes"]
        ],
        "stages": stages,
        "link_basis": None,
        "one_unit_fewer": {
            "node_id": stages[-1]["node_id"],
            "unit_id": stages[-1]["unit_id"],
            "stages": [
                {
                    "node_id": stages[0]["node_id"],
                    "unit_id": stages[0]["unit_id"],
                    "start_layer": 0,
                    "end_layer": deployment["num_layers"],
                    "is_added": False,
                }
            ],
            "token_seconds": prediction["token_seconds"] * 1.22,
            "tokens_per_second": prediction["tokens_per_second"] / 1.22,
            "first_token_seconds": prediction["first_token_seconds"] * 1.3,
            "total_tokens_per_second": prediction["total_tokens_per_second"] / 1.3,
        }
        if num_nodes > 1
        else None,
        "one_unit_more": None,
        "side_by_side": None,
        "in_groups": None,
        "without_groups": None,
        "draft": None,
        "rejections": rejections,
    }


_LOADED = frozenset({"read_bytes", "load_seconds", "progress", "measured"})
