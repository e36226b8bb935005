"""The model in the package as a repository of the hub, whole or cut into files by layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from support.formats.safetensors_bytes import safetensors_bytes

from potluck.catalog.locate import DEMO_DIRECTORY

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

DEMO = {
    path.name: path.read_bytes()
    for path in DEMO_DIRECTORY.iterdir()
    if path.suffix in (".json", ".safetensors")
}
SMALL = {name: data for name, data in DEMO.items() if name != WEIGHTS}


def hub_environment(home: Path, endpoint: str, **changes: str) -> dict[str, str]:
    """For a command that is to use a hub on loopback, with a cache of its own."""
    return {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "127.0.0.1,localhost",
        **changes,
    }


def cut_demo(file_of: Callable[[str], str]) -> dict[str, bytes]:
    """The demo with its tensors in the files that ``file_of`` gives for their names."""
    weights = DEMO[WEIGHTS]
    start = 8 + int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8:start])
    header.pop("__metadata__", None)
    weight_map = {name: file_of(name) for name in sorted(header)}
    files = dict(SMALL)
    for filename in set(weight_map.values()):
        entries: dict[str, object] = {}
        data = b""
        for name in weight_map:
            if weight_map[name] == filename:
                begin, end = header[name]["data_offsets"]
                offsets = [len(data), len(data) + end - begin]
                entries[name] = {**header[name], "data_offsets": offsets}
                data += weights[start + begin : start + end]
        files[filename] = safetensors_bytes(entries, data)
    files[INDEX] = json.dumps({"weight_map": weight_map}).encode()
    return files
