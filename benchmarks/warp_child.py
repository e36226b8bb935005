"""Run Warp in a process of its own and report its results, for ``warp_features.py``.

``python -m warp_child OPERATION FUNCTION…`` prints one JSON object: the version, the devices, what
the named functions of Warp's library return, and whether the result of the operation on the CPU was
``right`` or ``wrong``, or the error.

A process tries one operation, which alone defines its kernel: Warp compiles all kernels of a module
together, and one that it cannot compile takes the others with it. Annotations of kernels are read
by Warp, which takes none for a result, and no strings.
"""

# ruff: noqa: ANN202
# mypy: disable-error-code="valid-type, no-untyped-def, untyped-decorator"

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import warp as wp

Array = npt.NDArray[Any]

SIDE = 16
"""The side of the matrices: a power of two, as the transform without MathDx requires."""

SEED = 20261122

_TOLERANCE = 1e-4
"""The tolerance for float32 results from 1 to 16: a hundred times the error of 16 summed products.
"""


def main() -> None:
    """Run one operation on the CPU, and print what came of it."""
    wp.config.quiet = True
    wp.init()
    operation, *functions = sys.argv[1:]
    library = _library()
    answer = {
        "version": metadata.version("warp-lang"),
        "devices": [str(device) for device in wp.get_devices()],
        "returns": {name: _returned(library, name) for name in functions},
        "result": _tried(OPERATIONS[operation]),
    }
    print(json.dumps(answer))


def _library() -> Any:
    """Return the library that Warp opened; its module differs between versions of Warp."""
    return getattr(wp, "_src", wp).context.runtime.core


def _returned(library: Any, name: str) -> int | None:
    """Call the function, and return its result; None if the library does not have it."""
    function = getattr(library, name, None)
    return None if function is None else int(function())


def _tried(run: Callable[[], bool]) -> str:
    try:
        return "right" if run() else "wrong"
    except Exception as error:  # noqa: BLE001  whatever Warp raises is the result
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return text.replace(str(Path(__file__).parent), "benchmarks")


def _kernel() -> bool:
    @wp.kernel
    def scale(values: wp.array(dtype=float), factor: float, results: wp.array(dtype=float)):
        index = wp.tid()
        results[index] = values[index] * factor

    values = _matrix().ravel()
    results = wp.zeros(values.size, dtype=float, device="cpu")
    source = wp.array(values, dtype=float, device="cpu")
    wp.launch(scale, dim=values.size, inputs=[source, 3.0, results], device="cpu")
    return _is_close(results.numpy(), values * 3)


def _tile_matmul() -> bool:
    @wp.kernel
    def matmul(
        left: wp.array2d(dtype=float),
        right: wp.array2d(dtype=float),
        product: wp.array2d(dtype=float),
    ):
        a = wp.tile_load(left, shape=(SIDE, SIDE))
        b = wp.tile_load(right, shape=(SIDE, SIDE))
        wp.tile_store(product, wp.tile_matmul(a, b))

    left, right = _matrix(), _matrix(seed=SEED + 1)
    return _is_close(_run_tiled(matmul, [left, right], float), left @ right)


def _tile_cholesky() -> bool:
    @wp.kernel
    def cholesky(matrix: wp.array2d(dtype=float), factor: wp.array2d(dtype=float)):
        wp.tile_store(factor, wp.tile_cholesky(wp.tile_load(matrix, shape=(SIDE, SIDE))))

    root = _matrix()
    matrix = root @ root.T + SIDE * np.eye(SIDE, dtype=np.float32)
    factor = np.tril(_run_tiled(cholesky, [matrix], float))
    return _is_close(factor @ factor.T, matrix)


def _tile_fft() -> bool:
    @wp.kernel
    def transform(signals: wp.array2d(dtype=wp.vec2f), spectra: wp.array2d(dtype=wp.vec2f)):
        tile = wp.tile_load(signals, shape=(SIDE, SIDE))
        wp.tile_fft(tile)
        wp.tile_store(spectra, tile)

    real, imaginary = _matrix(), _matrix(seed=SEED + 1)
    found = _run_tiled(transform, [np.stack([real, imaginary], axis=-1)], wp.vec2f)
    expected = np.fft.fft(real + 1j * imaginary, axis=-1)
    return _is_close(found[..., 0] + 1j * found[..., 1], expected)


OPERATIONS = {
    "kernel": _kernel,
    "tile_matmul": _tile_matmul,
    "tile_cholesky": _tile_cholesky,
    "tile_fft": _tile_fft,
}


def _matrix(seed: int = SEED) -> Array:
    return np.random.default_rng(seed).standard_normal((SIDE, SIDE)).astype(np.float32)


def _run_tiled(kernel: Any, inputs: list[Array], dtype: Any) -> Array:
    arrays = [wp.array2d(each, dtype=dtype, device="cpu") for each in inputs]
    result = wp.zeros(shape=(SIDE, SIDE), dtype=dtype, device="cpu")
    wp.launch_tiled(kernel, dim=[1], inputs=[*arrays, result], block_dim=SIDE, device="cpu")
    found: Array = result.numpy()
    return found


def _is_close(found: Array, expected: Array) -> bool:
    return bool(np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * SIDE))


if __name__ == "__main__":
    main()
