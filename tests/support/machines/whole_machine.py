"""The whole probe and the doctor on a machine that umockdev plays.

``examine`` runs in the child that ``support.machines.umockdev.call_on_machine`` starts.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import Any

import msgspec
import pytest
from support.machines.doctor_cases import FOR_GPUS, PlayedSystem, a_case
from support.machines.umockdev import call_on_machine

from potluck.cli.doctor import report as report_findings
from potluck.cli.probe import probe_document, report_lines
from potluck.engines.backends import BACKENDS
from potluck.host.system import System
from potluck.probe.all_detectors import DETECTORS
from potluck.probe.cache import ProbeCache, default_cache_path
from potluck.probe.choose import choose_units
from potluck.probe.node_host import NodeHost
from potluck.probe.probe import ProbeOptions, probe_node

Document = dict[str, Any]

NO_LIBRARIES = NodeHost(document=None, problem="a machine that is played has no libraries")

_FORBIDDEN = "WHOLE_MACHINE_FORBIDDEN"


def examine_machine(machine: str, *, forbidden: str = "") -> Document:
    """``probe``: the document of ``potluck probe --json``; ``table``: the lines of ``potluck
    probe``; ``doctor`` and ``doctor_with_gpus``: what the doctor prints and its exit code, of a
    build for CPUs and of one with a backend for every GPU.

    ``forbidden`` is a file below /dev that the group render may open, and this process not: that
    is played, as somebody else than who runs the tests may not be able to run Python.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_FORBIDDEN, forbidden)
        answer = call_on_machine(machine, "support.machines.whole_machine:examine")
    document: Document = json.loads(answer)
    return document


def examine(system: System) -> Document:
    forbidden = os.environ[_FORBIDDEN]
    system = PlayedSystem(
        sys=system.sys,
        proc=system.proc,
        dev=system.dev,
        files=system.files,
        forbidden={forbidden: "render"} if forbidden else {},
    )
    cache = ProbeCache(default_cache_path(os.environ))
    native = tuple(spec for spec in BACKENDS if spec.name == "native")
    options = ProbeOptions(backends=native, num_threads=1)
    report = probe_node(system, options, cache, detectors=DETECTORS)
    findings = {}
    for name, backends in (("doctor", native), ("doctor_with_gpus", (*native, FOR_GPUS))):
        case = a_case(system, report, backends=backends)
        with contextlib.redirect_stdout(io.StringIO()) as output:
            exit_code = report_findings(case, as_json=False)
        findings[name] = {"exit_code": exit_code, "lines": output.getvalue().splitlines()}
    units = choose_units(report, requested=None, allow_software=False)
    return {
        "probe": msgspec.to_builtins(probe_document(report, units, NO_LIBRARIES)),
        "table": list(report_lines(report, units)),
        **findings,
    }
