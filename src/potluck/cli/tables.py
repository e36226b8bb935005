"""The cluster in plain tables, from its JSON documents. At most 80 columns where names allow it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from potluck.types.memory import MemoryPlan
from potluck.types.quantities import (
    format_bytes,
    format_count,
    format_number,
    format_rate,
    format_seconds,
)
from potluck.types.states import num_live_states


def node_lines(cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield the nodes and units of a document of schema ``potluck.cluster/1``."""
    rows = [("NODE", "STATE", "ADDRESS", "UNIT", "MAY USE", "THREADS")]
    for node in cluster["nodes"]:
        own = " *" if node["node_id"] == cluster["node_id"] else ""
        if not node.get("units"):
            rows.append((node["node_id"] + own, node["state"], *[""] * 4))
        for unit in node.get("units", ()):
            rows.append(
                (
                    node["node_id"] + own,
                    node["state"],
                    node["address"],
                    unit["unit_id"],
                    format_bytes(unit["usable_bytes"]),
                    str(unit["num_threads"]),
                )
            )
    yield from table(rows)
    yield from _shared_lines(cluster)
    for node in cluster["nodes"]:
        for unit in node.get("units", ()):
            if text := _unit_text(unit):
                yield f"{node['node_id']} {unit['unit_id']}: {text}"
    for node in cluster["nodes"]:
        for device in _devices(node):
            yield f"{node['node_id']} has {_device_text(node, device)}"
    for node in cluster["incompatible"]:
        yield (
            f"refused: {node['node_id']} speaks wire version {node['wire_version']}, "
            f"and this node {cluster['wire_version']}"
        )
    yield from _version_lines(cluster)
    for node in cluster["nodes"]:
        if node.get("http_address"):
            yield f"clients: {node['http_address']} at {node['node_id']}"


def _shared_lines(cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield the nodes on one machine: each shows memory that the others may use."""
    nodes_of: dict[str, list[str]] = {}
    for node in cluster["nodes"]:
        if node.get("host_id"):
            nodes_of.setdefault(node["host_id"], []).append(node["node_id"])
    for nodes in nodes_of.values():
        if len(nodes) > 1:
            yield f"on one machine, whose memory they share: {', '.join(nodes)}"


_ROLES = {
    "serves": "serves",
    "reserve": "in reserve",
    "idle": "idle",
    "pending": "not tested yet",
    "out": "out",
}


def _unit_text(unit: Mapping[str, Any]) -> str:
    """Return a unit's role, reason and speed; empty for one that just serves.

    The speed is that of the probe's two layers (``probe.cases``), by which units are compared.
    """
    rates = [
        f"{name} {format_number(figure['value'])} tokens/s"
        for name, figure in (
            ("decode", unit["rates"]["decode_tokens_per_second"]),
            ("prefill", unit["rates"]["prefill_tokens_per_second"]),
        )
        if figure["value"] is not None
    ]
    if unit["role"] == "serves" and not rates and not unit["reason"]:
        return ""
    reason = f": {unit['reason']}" if unit["reason"] else ""
    measured = f" (two test layers: {', '.join(rates)})" if rates else ""
    return f"{_ROLES[unit['role']]}{reason}{measured}"


def _devices(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for detector in node.get("hardware", {}).get("detectors", ()):
        yield from detector["devices"]


def _device_text(node: Mapping[str, Any], device: Mapping[str, Any]) -> str:
    """Describe a device: the read rate of its best unit, or why it has none."""
    trials = [
        trial for trial in node["hardware"]["trials"] if trial["device_id"] == device["device_id"]
    ]
    name = device["name"] or device["chip"] or device["device_id"]
    working = [trial for trial in trials if trial["works"]]
    pending = [trial for trial in trials if trial.get("is_pending")]
    if pending and not working:
        return f"{name}, not tested yet: {pending[0]['backend']}: {pending[0]['reason']}"
    if not working:
        reasons = [device["problem"], *(f"{each['backend']}: {each['reason']}" for each in trials)]
        known = "; ".join(reason for reason in reasons if reason)
        return f"{name}, unused: {known or not_tested_reason(is_software=device['is_software'])}"
    figures = [trial["figures"]["read_bytes_per_second"] for trial in working]
    rates = [figure["value"] for figure in figures if figure["value"] is not None]
    if not rates:
        return f"{name}, not measured yet"
    return f"{name}, reads {format_rate(max(rates), 'B/s')}"


def not_tested_reason(*, is_software: bool) -> str:
    """Return why no backend was tried on a device."""
    if is_software:
        return "--allow-software enables software-emulated GPUs"
    return "no backend in this build supports it"


def _version_lines(cluster: Mapping[str, Any]) -> Iterator[str]:
    """Yield the version, or a line for each if nodes differ."""
    nodes_of: dict[str, list[str]] = {}
    for node in cluster["nodes"]:
        if "version" in node:
            nodes_of.setdefault(node["version"], []).append(node["node_id"])
    for version, nodes in sorted(nodes_of.items()):
        where = f" on {', '.join(nodes)}" if len(nodes_of) > 1 else ""
        yield f"version: {version}{where}"


def deployment_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the state of a deployment, then its stages."""
    reason = f" ({deployment['reason']})" if deployment["reason"] else ""
    yield f"{deployment['model_id']}: {deployment['state']}{reason}"
    yield (
        f"context {deployment['context_tokens']} tokens, "
        f"coordinator {deployment['epoch']['coordinator']}, epoch {deployment['epoch']['number']}"
    )
    yield from _recovery_lines(deployment)
    yield from transfer_lines(deployment)
    for refusal in deployment["refused"]:
        yield f"refuses requests: {refusal['node_id']}: {refusal['reason']}"
    yield from stage_lines(deployment)


def _recovery_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield recoveries, spare stages, and slow stages."""
    if not deployment["has_quorum"]:
        yield ("partitioned: most nodes that knew of this deployment are unreachable")
    if count := deployment["num_recoveries"]:
        last = deployment["recovery_seconds"]
        recent = "" if last is None else f", most recently in {last:.1f} s"
        yield f"recovered {format_count(count, 'time')}{recent}"
    for held in deployment["spares"]:
        yield (
            f"spare: {held['node_id']} {held['unit_id']} holds layers [{held['start_layer']}, "
            f"{held['end_layer']}){_part_of(held)} ready"
        )
    if deployment["num_spares"] and not deployment["spares"]:
        yield f"spare: no stage has its {format_count(deployment['num_spares'], 'spare')} yet"
    if deployment["rebalance_note"]:
        yield f"rebalance: {deployment['rebalance_note']}"
    for slow in deployment["slow_stages"]:
        yield (
            f"slow: stage {slow['stage']} at {slow['node_id']} takes {slow['slowdown']:.1f} "
            "times as long as it used to"
        )


_VERIFICATIONS = {
    "pending": "files: verification in progress",
    "verified": "files: SHA-256 verified",
    "partly": "files: SHA-256 not verified, as no set of nodes has all of them",
}


def transfer_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the model files that nodes get from elsewhere, and whether they are verified."""
    for transfer in deployment["transfers"]:
        yield f"files at {transfer['node_id']}: {transfer_text(transfer)}"
    if deployment["verification"] is not None:
        yield _VERIFICATIONS[deployment["verification"]]


def transfer_text(transfer: Mapping[str, Any]) -> str:
    """Return how far a node is with the files that it gets, and where they come from."""
    total = format_bytes(transfer["total_bytes"])
    sources = ", ".join(
        f"{format_bytes(num_bytes)} from {'its ' if source == 'disk' else ''}{source}"
        for source, num_bytes in sorted(transfer["by_source"].items(), key=lambda each: -each[1])
        if num_bytes
    )
    came = f": {sources}" if sources else ""
    if transfer["done_bytes"] >= transfer["total_bytes"]:
        return f"{total}{came}"
    rate = format_rate(transfer["bytes_per_second"], "B/s")
    left = transfer["seconds_left"]
    until = "" if left is None else f", {format_seconds(left)} left"
    return f"{format_bytes(transfer['done_bytes'])} of {total}{came}; {rate}{until}"


def _part_of(stage: Mapping[str, Any]) -> str:
    """Return which part of a stage a member of a group has; empty without a group."""
    part = stage["part"]
    return "" if part is None else f", part {part['member'] + 1} of {len(part['shares'])},"


def is_led(stage: Mapping[str, Any]) -> bool:
    """Return whether another member of its group, the leader, sends a stage's results on."""
    return bool(stage["part"]) and stage["part"]["member"] > 0


def stage_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stages of a deployment or a plan, and the unused units."""
    rows = [("STAGE", "NODE", "UNIT", "LAYERS", "BYTES")]
    last = len(deployment["stages"]) - 1
    for stage in deployment["stages"]:
        parts = [f"[{stage['start_layer']}, {stage['end_layer']})"]
        part = stage["part"] or {"member": 0, "shares": [1]}
        first = stage["stage"] - part["member"]
        if first == 0:
            parts.insert(0, "embedding +")
        if first + len(part["shares"]) - 1 == last:
            parts.append("+ head")
        if stage["part"]:
            parts.append(f", {part['shares'][part['member']]} of {sum(part['shares'])} parts")
        rows.append(
            (
                str(stage["stage"]),
                stage["node_id"],
                stage["unit_id"],
                " ".join(parts).replace(" ,", ","),
                format_bytes(stage["num_bytes"]),
            )
        )
    if deployment["stages"]:
        yield from table(rows)
    yield from memory_lines(deployment)
    yield from state_lines(deployment)
    if mapped := mapped_text(deployment):
        yield mapped
    yield from remark_lines(deployment)
    for rejection in deployment["rejections"]:
        yield f"not used: {rejection['node_id']} {rejection['unit_id']}: {rejection['reason']}"


def memory_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield what each stage uses memory for, and how long it took to load."""
    for stage in deployment["stages"]:
        memory = stage_memory(stage)
        own = f"; {format_bytes(memory.device_bytes)} of it on the device"
        yield f"stage {stage['stage']}: {memory.described()}{own if memory.is_on_device else ''}"
        if stage.get("read_bytes") is not None:
            yield (
                f"stage {stage['stage']}: {format_bytes(stage['read_bytes'])} read "
                f"in {stage['load_seconds']:.1f} s"
            )


def states_text(num_states: int, num_bytes: int) -> str:
    """Return the state slots that take ``num_bytes`` together: ``10 x 50 MiB, …``."""
    slots = f"{num_states} x {format_bytes(round(num_bytes / num_states))}"
    return f"{slots}, {num_live_states(num_states)} of them for live sequences"


def state_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield the state slots of all stages of a deployment or a plan, if the model has states."""
    num_states = deployment["num_states"]
    if num_states and deployment["stages"]:
        num_bytes = sum(stage["memory"]["state_bytes"] for stage in deployment["stages"])
        yield f"states: {states_text(num_states, num_bytes)}"


def remark_lines(deployment: Mapping[str, Any]) -> Iterator[str]:
    """Yield how a deployment is quantized and computed."""
    if deployment["quantization"] != "none":
        yield f"quant: {deployment['quantization']}"
    for remark in deployment["remarks"]:
        yield f"quant: {remark}"
    if deployment["arithmetic_note"]:
        yield f"arithmetic: {deployment['arithmetic_note']}"


def mapped_text(deployment: Mapping[str, Any]) -> str:
    """Describe how a deployment or a plan maps its weights; empty if it does not."""
    if not deployment["is_mapped"] or not deployment["stages"]:
        return ""
    loaded = [str(stage["stage"]) for stage in deployment["stages"] if stage["memory"]["weights"]]
    but = f" except in {'stage' if len(loaded) == 1 else 'stages'} {', '.join(loaded)}"
    return f"weights are memory-mapped and do not count as used memory{but if loaded else ''}"


def stage_memory(stage: Mapping[str, Any]) -> MemoryPlan:
    """Return what a stage of a document takes."""
    memory = stage["memory"]
    return MemoryPlan(**{**memory, "weights": tuple(memory["weights"].items())})


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows with aligned columns, without truncating anything."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
