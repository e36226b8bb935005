"""What loading leaves behind, and what it needs: file pages, memory, a writable file system."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.engines.pools import pool_of
from support.engines.programs import program_reading
from support.kernels.build import not_shown, require_tool

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.engines.native.engine import convert_on
from potluck.formats.safetensors import open_safetensors
from potluck.types.choices import Quantization
from potluck.types.tensor import TensorInfo
from potluck.weights.load import STAGING_BYTES, load_weights

MIB = 2**20
SHAPES = {"a": (8192, 1024), "b": (4096, 2048), "c": (30, 1024)}  # 64 MiB in F32, and a little
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose pages are clean: dirty ones stay, whatever is advised."""
    path = tmp_path_factory.mktemp("hygiene") / "model.safetensors"
    header, end = {}, 0
    for name, shape in SHAPES.items():
        begin, end = end, end + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": (begin, end)}
    encoded = json.dumps(header).encode()
    rng = np.random.default_rng(0)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for shape in SHAPES.values():
            file.write(rng.standard_normal(shape, np.float32).tobytes())
        file.flush()
        os.fsync(file.fileno())
    return path


class NullSink:
    """Takes everything and keeps nothing; it remembers the largest anonymous memory it has seen."""

    def __init__(self) -> None:
        self.most_anonymous_bytes = 0

    def begin(self, info: TensorInfo) -> None:
        pass

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        self.most_anonymous_bytes = max(self.most_anonymous_bytes, anonymous_bytes())

    def finish(self, name: str) -> None:
        pass


def anonymous_bytes() -> int:
    """RssAnon and RssShmem of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssShmem"))


def cached_fraction(path: Path) -> float:
    """The part of a file's pages that the page cache has (``mincore(2)``)."""
    size = path.stat().st_size
    num_pages = -(-size // mmap.PAGESIZE)
    found = (ctypes.c_ubyte * num_pages)()
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as mapped:
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), found) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
    return float(np.mean(np.frombuffer(bytes(found), np.uint8) & 1))


def load(path: Path, quantization: Quantization = Quantization.NONE) -> NullSink:
    sink = NullSink()
    with closing(open_safetensors(path)) as source:
        load_weights(
            program_reading(dict(SHAPES)),
            source,
            sink,
            convert=convert_on(pool_of(2)),
            quantization=quantization,
        )
    return sink


def test_the_files_pages_are_given_back(model: Path) -> None:
    with model.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_fraction(model) > 0.01:
        not_shown("the file system of temporary files keeps pages whatever is advised")
    model.read_bytes()
    assert cached_fraction(model) == 1
    load(model)
    # What remains: pages that two blocks share, of which neither may be dropped alone.
    assert cached_fraction(model) < 0.02


def print_staging(path: str, quantization: str) -> None:
    """What is held besides, in a process that has no freed memory to take it from."""
    load(Path(path), Quantization(quantization))  # so that what libraries keep for ever is there
    before = anonymous_bytes()
    print(load(Path(path), Quantization(quantization)).most_anonymous_bytes - before)


@pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q8_0])
def test_staging_is_all_that_is_held(model: Path, quantization: Quantization) -> None:
    call = "import runpy, sys; runpy.run_path(sys.argv[1])['print_staging'](*sys.argv[2:])"
    completed = subprocess.run(
        [sys.executable, "-c", call, __file__, str(model), quantization.value],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert 8 * MIB < int(completed.stdout) <= STAGING_BYTES


def test_a_read_only_mount_is_enough(tmp_path: Path) -> None:
    shutil.copytree(DEMO_DIRECTORY, tmp_path / "model")
    directory = str(tmp_path / "model")
    mount = f'mount --bind "{directory}" "{directory}" && mount -o remount,bind,ro "{directory}"'
    command = (require_tool("unshare"), "--mount", "sh", "-c")
    completed = subprocess.run([*command, mount], capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        not_shown(f"mounts can't be made here: {completed.stderr.strip()}")
    program = (
        "import potluck, pathlib, sys\n"
        "try:\n"
        "    pathlib.Path(sys.argv[1], 'x').touch()\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
        "with potluck.Model.open(sys.argv[1], num_threads=1) as model:\n"
        "    print(len(model.generate('Once', max_tokens=3, ignore_eos=True).result().pieces))\n"
    )
    run = (*command, f'{mount} && exec "$@"', "sh", sys.executable, "-c", program, directory)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    completed = subprocess.run(
        run, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.stdout.split("\n")[:2] == ["Read-only file system", "3"], completed.stderr
