"""What Warp does and says of itself, in a process of its own, for ``warp_features.py``.

``python -m warp_child FUNCTION…`` prints one JSON object: the version, what the named functions of
its library return, the devices, and of each operation on the CPU whether its result was right, or
the error.

Annotations of kernels are read by Warp, which takes none for a result, and no strings.
"""

# ruff: noqa: ANN202

import json
import sys
from collections.abc import Callable
from importlib import metadata

import numpy as np
import warp as wp

SIDE = 16
"""Of the matrices: a power of two, as the transform without MathDx wants."""

SEED = 20261122

_TOLERANCE = 1e-4
"""Of results of size 1 to 16, in float32: a hundred times what summing 16 products can be off."""


@wp.kernel
def _scale(values: wp.array(dtype=float), factor: float, results: wp.array(dtype=float)):  # type: ignore[valid-type]
    index = wp.tid()
    results[index] = values[index] * factor


@wp.kernel
def _matmul(
    left: wp.array2d(dtype=float),  # type: ignore[valid-type]
    right: wp.array2d(dtype=float),  # type: ignore[valid-type]
    product: wp.array2d(dtype=float),  # type: ignore[valid-type]
):
    tile = wp.tile_matmul(
        wp.tile_load(left, shape=(SIDE, SIDE)), wp.tile_load(right, shape=(SIDE, SIDE))
    )
    wp.tile_store(product, tile)


@wp.kernel
def _cholesky(matrix: wp.array2d(dtype=float), factor: wp.array2d(dtype=float)):  # type: ignore[valid-type]
    wp.tile_store(factor, wp.tile_cholesky(wp.tile_load(matrix, shape=(SIDE, SIDE))))


@wp.kernel
def _fft(
    signals: wp.array2d(dtype=wp.vec2f),  # type: ignore[valid-type]
    spectra: wp.array2d(dtype=wp.vec2f),  # type: ignore[valid-type]
):
    tile = wp.tile_load(signals, shape=(SIDE, SIDE))
    wp.tile_fft(tile)
    wp.tile_store(spectra, tile)


def main() -> None:
    """Run everything on the CPU, and print what came of it."""
    wp.config.quiet = True
    wp.init()
    draws = np.random.default_rng(SEED)
    left, right = draws.standard_normal((2, SIDE, SIDE)).astype(np.float32)
    runtime = _runtime()
    answer = {
        "version": metadata.version("warp-lang"),
        "returns": {name: _returned(runtime, name) for name in sys.argv[1:]},
        "devices": [str(device) for device in wp.get_devices()],
        "results": {
            "kernel": _tried(lambda: _is_close(_run_scale(left), left.ravel() * 3)),
            "tile_matmul": _tried(lambda: _is_close(_run_matmul(left, right), left @ right)),
            "tile_cholesky": _tried(lambda: _run_cholesky(left)),
            "tile_fft": _tried(lambda: _run_fft(left, right)),
        },
    }
    print(json.dumps(answer))


def _runtime() -> object:
    """The library that Warp opened; the module that holds it moved once."""
    holder = getattr(wp, "_src", wp).context
    return holder.runtime.core


def _returned(library: object, name: str) -> int | None:
    """What the function returns when it is called; None if there is none."""
    function = getattr(library, name, None)
    return None if function is None else int(function())


def _tried(run: Callable[[], bool]) -> str:
    """``right`` or ``wrong``, or the error."""
    try:
        return "right" if run() else "wrong"
    except Exception as error:  # noqa: BLE001  whatever Warp raises is the result
        return f"{type(error).__name__}: {error}".splitlines()[0]


def _run_scale(values: np.ndarray) -> np.ndarray:
    results = wp.zeros(values.size, dtype=float, device="cpu")
    source = wp.array(values.ravel(), dtype=float, device="cpu")
    wp.launch(_scale, dim=values.size, inputs=[source, 3.0, results], device="cpu")
    return results.numpy()


def _run_tiled(kernel: object, inputs: list[np.ndarray], dtype: object) -> np.ndarray:
    arrays = [wp.array2d(each, dtype=dtype, device="cpu") for each in inputs]
    result = wp.zeros(shape=(SIDE, SIDE), dtype=dtype, device="cpu")
    wp.launch_tiled(kernel, dim=[1], inputs=[*arrays, result], block_dim=SIDE * 2, device="cpu")
    return result.numpy()


def _run_matmul(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return _run_tiled(_matmul, [left, right], float)


def _run_cholesky(left: np.ndarray) -> bool:
    matrix = left @ left.T + SIDE * np.eye(SIDE, dtype=np.float32)
    factor = np.tril(_run_tiled(_cholesky, [matrix], float))
    return _is_close(factor @ factor.T, matrix)


def _run_fft(real: np.ndarray, imaginary: np.ndarray) -> bool:
    found = _run_tiled(_fft, [np.stack([real, imaginary], axis=-1)], wp.vec2f)
    expected = np.fft.fft(real + 1j * imaginary, axis=-1)
    return _is_close(found[..., 0] + 1j * found[..., 1], expected)


def _is_close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE * SIDE))


if __name__ == "__main__":
    main()
