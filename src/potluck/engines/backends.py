"""The backends that this build has. Adding one is a module of trials and a row here."""

from __future__ import annotations

from potluck.types.hardware import BackendSpec, DeviceKind

BACKENDS: tuple[BackendSpec, ...] = (
    BackendSpec(
        name="native",
        module="potluck.engines.native_trial",
        kinds=frozenset({DeviceKind.CPU}),
        packages=("numpy",),  # its arrays are the core's
    ),
)
"""In the order of preference among equals."""
