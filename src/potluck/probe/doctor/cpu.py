"""Checks for settings that slow down the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from potluck.probe.doctor.case import Case
from potluck.probe.doctor.finding import Finding, Severity

_POLICIES = "/sys/devices/system/cpu/cpufreq"

_SELF_SCALING = frozenset({"intel_pstate", "amd-pstate-epp"})
"""Drivers with which the CPU itself chooses its clock, up to the maximum. Their "powersave" differs
from the governor of that name (kernel, admin-guide/pm/intel_pstate.rst, amd-pstate.rst).
"""

_DYNAMIC = frozenset({"schedutil"})
"""Governors that follow the load closely; threads that wait for each other still get lower
clocks.
"""


def slow_governor(case: Case) -> Iterator[Finding]:
    """Check for a governor that does not run the cores at their maximum clock."""
    governors: dict[str, list[str]] = {}
    is_dynamic = True
    for policy in _policies(case):
        governor = case.system.text(policy / "scaling_governor") or ""
        offered = (case.system.text(policy / "scaling_available_governors") or "").split()
        if governor in ("", "performance") or "performance" not in offered:
            continue
        governors.setdefault(governor, []).append(policy.name)
        driver = case.system.text(policy / "scaling_driver")
        is_dynamic &= governor in _DYNAMIC or driver in _SELF_SCALING
    if not governors:
        return
    governor_text = ", ".join(
        f"{governor} ({', '.join(policies)})" for governor, policies in sorted(governors.items())
    )
    yield Finding(
        check="cpu-governor",
        severity=Severity.NOTE if is_dynamic else Severity.SLOWS,
        message=f"the CPU frequency governor is {governor_text} instead of performance",
        command=f"echo performance | sudo tee {_POLICIES}/policy*/scaling_governor",
        details="on the host, until it reboots" if case.container else "until the machine reboots",
    )


def _policies(case: Case) -> list[Path]:
    directory = case.system.sys / "devices/system/cpu/cpufreq"
    return [path for path in case.system.entries(directory) if path.name.startswith("policy")]
