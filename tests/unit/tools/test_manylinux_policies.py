"""The table of policies, from policies made up here."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = ROOT / "tools/manylinux_policies.py"
    spec = importlib.util.spec_from_file_location("manylinux_policies", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_everything_stands_with_the_first_policy_that_has_it(
    tool: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "MACHINES", ("x86_64",))
    monkeypatch.setattr(tool.metadata, "version", lambda name: "1.2.3")
    policies = [
        {
            "name": "manylinux_2_5",
            "symbol_versions": {"x86_64": {"GLIBC": ["2.5", "2.10", "2.9"]}},
            "lib_whitelist": ["libc.so.6", "libgone.so.1"],
        },
        {
            "name": "manylinux_2_17",
            "symbol_versions": {"x86_64": {"GLIBC": ["2.5", "2.17"], "GCC": ["4.8.0"]}},
            "lib_whitelist": ["libc.so.6", "libz.so.1"],
        },
    ]
    text = "\n".join(tool.lines(policies))
    assert "release 1.2.3" in text
    table = tomllib.loads(text)
    assert table["machine"] == {
        "x86_64": {
            "policies": ["2.5", "2.17"],
            "versions": {
                "2.5": ["GLIBC_2.5", "GLIBC_2.9", "GLIBC_2.10"],
                "2.17": ["GCC_4.8.0", "GLIBC_2.17"],
            },
            "libraries": {"2.5": ["libc.so.6", "libgone.so.1"], "2.17": ["libz.so.1"]},
        }
    }
    assert {"maker": "Debian", "release": "12", "glibc": "2.36"} in table["system"]
