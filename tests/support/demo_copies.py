"""Copies of the demo model, to spoil."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from potluck.catalog.locate import DEMO_DIRECTORY


def copied_demo(directory: Path) -> Path:
    directory.mkdir()
    for file in DEMO_DIRECTORY.iterdir():
        if file.suffix in (".json", ".safetensors"):
            shutil.copyfile(file, directory / file.name)
    return directory


def change_config(model: Path, **changes: object) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
