"""distributed-llama beside Potluck: its files with random weights, and its program on cores.

The format of its files is that of ``converter/writer.py`` and ``converter/tokenizer-writer.py`` of
https://github.com/b4rtaz/distributed-llama at v0.16. Its ``Q40`` blocks have the layout of GGUF's
Q4_0. It is built by its own ``make dllama`` outside of this repository.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from model_shapes import MAX_CONTEXT_TOKENS, Shape
from peer_process import RunFailedError, output_of
from random_weights import SEED, random_tensor

from potluck.types.tensor import TensorFormat

_MODEL_MAGIC = 0x0A00ABCD
_TOKENIZER_MAGIC = 0x567124
_ARCH_LLAMA = 0xABCD00
_Q40 = 2
_SILU = 1
_EPSILON_1E5 = 5
_FIRST_LETTER = 32
"""Prompts contain no bytes below this one."""
_START_SECONDS = 20.0
_RUN_SECONDS = 900.0
_GIT_SECONDS = 20.0
_OWN_SOURCE = "src/dllama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRates:
    """Tokens per second of one run, as the program prints them."""

    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    num_prompt_tokens: int
    num_decoded_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerBuild:
    """The measured program. ``version`` is empty if the checkout has no tags or is missing."""

    commit: str
    version: str
    sha256: str


def build_of(program: Path, commit: str | None = None) -> PeerBuild:
    """Return ``commit``, or that of the checkout that the program lies in: it prints none itself.

    Raise ``ValueError`` if neither is known, and ``OSError`` if the program cannot be read.
    """
    sha256 = hashlib.sha256(program.read_bytes()).hexdigest()
    if commit is not None:
        return PeerBuild(commit=commit, version="", sha256=sha256)
    try:
        root = Path(_git(program.parent, "rev-parse", "--show-toplevel"))
        if not (root / _OWN_SOURCE).exists():  # another project's checkout
            raise RunFailedError(f"{root} has no {_OWN_SOURCE}")
        commit = _git(root, "rev-parse", "HEAD")
        version = _git(root, "describe", "--tags", "--always", "--dirty")
    except RunFailedError as error:
        raise ValueError(f"the commit of {program} is not known: {error}") from error
    return PeerBuild(commit=commit, version=version, sha256=sha256)


def _git(directory: Path, *arguments: str) -> str:
    return output_of(["git", "-C", str(directory), *arguments], _GIT_SECONDS).strip()


def write_model(shape: Shape, vocab_size: int, path: Path) -> None:
    """Write a model of ``shape``, a plain Llama, with matrices in Q40."""
    if shape.family != "llama" or shape.experts is not None:
        raise ValueError("only the shapes of Llama can be written for distributed-llama")
    rng = np.random.default_rng(SEED)
    hidden, kv_rows = shape.hidden_size, shape.num_key_value_heads * shape.head_dim
    q_rows, inner = shape.num_heads * shape.head_dim, shape.intermediate_size
    fields = {
        0: 0,  # version
        1: _ARCH_LLAMA,
        2: hidden,
        3: inner,
        4: shape.num_layers,
        5: shape.num_heads,
        6: shape.num_key_value_heads,
        7: 0,  # experts
        8: 0,
        9: vocab_size,
        10: MAX_CONTEXT_TOKENS,
        11: _SILU,
        12: 10_000,  # rope theta
        13: _Q40,
        19: shape.head_dim,
        20: _EPSILON_1E5,
    }
    with path.open("wb") as file:
        _write_header(file, _MODEL_MAGIC, fields)
        _write(file, rng, TensorFormat.F32, (vocab_size, hidden))
        for _ in range(shape.num_layers):
            for rows, columns in (
                (q_rows, hidden),
                (kv_rows, hidden),
                (kv_rows, hidden),
                (hidden, q_rows),
                (inner, hidden),
                (hidden, inner),
                (inner, hidden),
            ):
                _write(file, rng, TensorFormat.Q4_0, (rows, columns))
            _write(file, rng, TensorFormat.F32, (hidden,))
            _write(file, rng, TensorFormat.F32, (hidden,))
        _write(file, rng, TensorFormat.F32, (hidden,))
        _write(file, rng, TensorFormat.Q4_0, (vocab_size, hidden))


def write_tokenizer(vocab_size: int, path: Path) -> None:
    """Write a vocabulary: every printable ASCII character, and words that no prompt has."""
    tokens = [bytes([code]) for code in range(_FIRST_LETTER, 127)]
    tokens += [f"\x01{index}".encode() for index in range(vocab_size - len(tokens))]
    bos = vocab_size - 2
    fields = {0: 1, 1: vocab_size, 2: max(map(len, tokens)), 3: bos, 9: 1, 10: 1}
    with path.open("wb") as file:
        _write_header(file, _TOKENIZER_MAGIC, fields)
        file.write(struct.pack("<i", vocab_size - 1))  # ends an answer
        for token in tokens:
            file.write(struct.pack("<fI", 0.0, len(token)) + token)


def measured(
    program: Path,
    model: Path,
    tokenizer: Path,
    cores: Sequence[int],
    *,
    num_prompt_tokens: int,
    num_tokens: int,
) -> PeerRates:
    """Run it over one process with one thread on each of ``cores``; the first one is the root.

    Raise ``RunFailedError`` when it fails, and ``ValueError`` when it prints no rates.
    """
    with contextlib.ExitStack() as opened:
        addresses = [opened.enter_context(_worker(program, core)) for core in cores[1:]]
        command = ["taskset", "-c", str(cores[0]), str(program), "inference"]
        command += ["--model", str(model), "--tokenizer", str(tokenizer)]
        command += ["--prompt", "a" * (num_prompt_tokens - 1), "--nthreads", "1"]
        command += ["--steps", str(num_prompt_tokens + num_tokens)]
        command += ["--buffer-float-type", "q80", "--temperature", "0", "--max-seq-len", "2048"]
        if addresses:
            command += ["--workers", *addresses]
        output = output_of(command, _RUN_SECONDS)
    sections = re.split(r"^(Evaluation|Prediction)$", output, flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    if set(found) != {"Evaluation", "Prediction"}:
        raise ValueError("distributed-llama printed no rates")
    return PeerRates(
        prefill_tokens_per_second=_number(r"tokens/s:\s*([\d.]+)", found["Evaluation"]),
        decode_tokens_per_second=_number(r"tokens/s:\s*([\d.]+)", found["Prediction"]),
        num_prompt_tokens=int(_number(r"nTokens:\s*(\d+)", found["Evaluation"])),
        num_decoded_tokens=int(_number(r"nTokens:\s*(\d+)", found["Prediction"])),
    )


def _number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"distributed-llama printed no {pattern}")
    return float(match[1])


@contextlib.contextmanager
def _worker(program: Path, core: int) -> Iterator[str]:
    """Run a worker on a core, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["taskset", "-c", str(core), str(program), "worker"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--nthreads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_listening(process, port)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _await_listening(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait for the worker without connecting: it treats the first client as the root."""
    deadline = time.monotonic() + _START_SECONDS
    wanted = f"0100007F:{port:04X} 00000000:0000 0A"
    while wanted not in Path("/proc/net/tcp").read_text(encoding="ascii"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("a worker of distributed-llama does not listen")
        time.sleep(0.05)


def _write_header(file: BinaryIO, magic: int, fields: dict[int, int]) -> None:
    pairs = b"".join(struct.pack("<ii", key, value) for key, value in fields.items())
    file.write(struct.pack("<ii", magic, 8 + len(pairs)) + pairs)


def _write(
    file: BinaryIO, rng: np.random.Generator, fmt: TensorFormat, dimensions: tuple[int, ...]
) -> None:
    for piece in random_tensor(rng, fmt, dimensions):
        file.write(piece.data)
