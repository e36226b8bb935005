"""The backends that this build has. Adding one is a module of trials and a row here."""

from __future__ import annotations

from potluck.types.hardware import BackendSpec, DeviceKind

_TINYGRAD = "potluck.engines.tinygrad.trial"
_TINYGRAD_PACKAGES = ("tinygrad", "numpy")
_GPU = frozenset({DeviceKind.GPU})

BACKENDS: tuple[BackendSpec, ...] = (
    BackendSpec(
        name="native",
        module="potluck.engines.native_trial",
        kinds=frozenset({DeviceKind.CPU}),
        packages=("numpy",),  # its arrays are the core's
    ),
    *(
        BackendSpec(
            name=name,
            module=_TINYGRAD,
            kinds=_GPU,
            api=api,
            packages=_TINYGRAD_PACKAGES,
            extra="tinygrad",
        )
        for name, api in (
            ("tinygrad:CUDA", "cuda"),
            ("tinygrad:AMD", "kfd"),
            ("tinygrad:QCOM", "kgsl"),
            ("tinygrad:CL", "opencl"),
        )
    ),
    BackendSpec(
        name="tinygrad:CPU",
        module=_TINYGRAD,
        kinds=frozenset({DeviceKind.CPU}),
        is_software=True,
        packages=_TINYGRAD_PACKAGES,
        extra="tinygrad",
    ),
)
"""In the order in which they are tried: a maker's own interface before what all have."""
