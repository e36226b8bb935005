"""Compare every family's logits with llama.cpp's, on the same GGUF files of random models.

    python benchmarks/families.py OUT.json [--only NAME …]

The models are those of the parity tests, which compare them with ``transformers``. The peer is the
package ``llama-cpp-python``; both sides compute in F32 with a cache in F32, Potluck in its
reference engine. A row has the largest difference of two logits and the standard deviation of all.
llama.cpp does not read YaRN's ``yarn_beta_fast`` in files of most architectures, which shows in
``kimi-k2``; nor does it load models whose dense layers are not the first ones, or a Nemotron-H
without any attention.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
from circumstances import circumstances
from command_line import documented_parser
from numpy.typing import NDArray

_TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(_TESTS), str(_TESTS / "parity")]

import test_dense_families as dense  # type: ignore[import-not-found]  # noqa: E402
import test_expert_parity as experts  # type: ignore[import-not-found]  # noqa: E402
import test_gated_delta_parity as gated_delta  # type: ignore[import-not-found]  # noqa: E402
import test_gemma_parity as gemma  # type: ignore[import-not-found]  # noqa: E402
import test_hybrid_parity as hybrids  # type: ignore[import-not-found]  # noqa: E402
import test_latent_parity as latent  # type: ignore[import-not-found]  # noqa: E402
import test_mamba_parity as mambas  # type: ignore[import-not-found]  # noqa: E402
from support.engines.stages import Stages  # noqa: E402
from support.models.dense_models import write_dense_gguf  # noqa: E402
from support.models.expert_models import make_expert_model, write_expert_gguf  # noqa: E402
from support.models.gated_delta_models import (  # noqa: E402
    make_gated_delta_model,
    write_gated_delta_gguf,
)
from support.models.gemma_models import make_gemma, write_gemma_gguf  # noqa: E402
from support.models.hybrid_models import make_hybrid_model, write_hybrid_gguf  # noqa: E402
from support.models.mamba_models import make_mamba_model, write_mamba_gguf  # noqa: E402
from support.models.random_models import make_random_model, random_tokens  # noqa: E402

from potluck.formats.gguf import open_gguf  # noqa: E402
from potluck.models.names import FileKind  # noqa: E402
from potluck.models.registry import config_from_gguf, with_stored_head  # noqa: E402

SCHEMA = "potluck.benchmark.families/1"
NUM_TOKENS = 60
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A case of the tests, with a function that writes its GGUF file to a folder."""

    name: str
    family: str
    write: Callable[[Path], Path]


def models() -> Iterator[Model]:
    """Yield all cases that have GGUF files."""
    for case in dense.CASES:
        if case.architecture:
            yield _model(case, _write_dense)
    for case in gemma.GGUF_CASES:
        yield _model(case, _write_gemma)
    for case in experts.CASES:
        if case.has_gguf:
            yield _model(case, _write_experts)
    for case in latent.CASES:
        if case.has_gguf:
            yield _model(case, partial(_write_latent, has_joint_up=False))
            yield _model(case, partial(_write_latent, has_joint_up=True), "-old-file")
    for case in gated_delta.WITH_GGUF:
        yield _model(case, _write_gated_delta)
    for case in hybrids.CASES:
        if case.has_gguf:
            yield _model(case, _write_hybrid)
    for case in mambas.CASES:
        if case.has_gguf:
            yield _model(case, _write_mamba)


def _model(case: Any, write: Callable[[Any, Path, Path], object], ending: str = "") -> Model:
    def write_to(folder: Path) -> Path:
        path = folder / "model.gguf"
        write(case, folder, path)
        return path

    return Model(name=f"{case.name}{ending}", family=case.family, write=write_to)


def _write_dense(case: dense.Case, folder: Path, path: Path) -> None:
    model = make_random_model(case.family, case.settings, folder, seed=3)
    write_dense_gguf(path, model, case.architecture, case.metadata, rewrite=case.rewrite)


def _write_gemma(case: gemma.Case, folder: Path, path: Path) -> None:
    model = make_gemma(case.family, case.settings, folder, wrapper=case.wrapper, seed=12)
    write_gemma_gguf(path, model)


def _write_experts(case: experts.Case, folder: Path, path: Path) -> None:
    write_expert_gguf(path, make_expert_model(case.family, case.settings, folder, seed=5))


def _write_latent(case: latent.Case, folder: Path, path: Path, *, has_joint_up: bool) -> None:
    # llama.cpp knows models with full-rank queries by their number of layers.
    is_lite = case.settings["q_lora_rank"] is None
    settings = {**case.settings, **({"num_hidden_layers": 27} if is_lite else {})}
    model = make_expert_model(case.family, settings, folder, seed=5)
    write_expert_gguf(path, model, has_joint_up=has_joint_up)


def _write_gated_delta(case: gated_delta.Case, folder: Path, path: Path) -> None:
    model = make_gated_delta_model(case.family, case.settings, folder, seed=5, sees=case.sees)
    write_gated_delta_gguf(path, model)


def _write_hybrid(case: hybrids.Case, folder: Path, path: Path) -> None:
    write_hybrid_gguf(path, make_hybrid_model(case.family, case.settings, folder, seed=5))


def _write_mamba(case: mambas.Case, folder: Path, path: Path) -> None:
    write_mamba_gguf(path, make_mamba_model(case.family, case.settings, folder, seed=5))


def with_vocabulary(path: Path) -> Path:
    """Write a copy marked as having no tokenizer, as llama.cpp requires; return its path."""
    reader = gguf.GGUFReader(path)
    out = path.with_name("peer.gguf")
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, architecture)
    for name, field in fields.items():
        if name == "general.architecture" or name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        inner = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=inner)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    if f"{architecture}.vocab_size" not in fields:
        (embedding,) = (each for each in reader.tensors if each.name == "token_embd.weight")
        writer.add_vocab_size(int(embedding.shape[1]))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def peer_logits(path: Path, tokens: list[int]) -> Floats:
    """Return llama.cpp's logits at every position."""
    model_options = llama_cpp.llama_model_default_params()
    model_options.use_mmap = False
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_options)
    if not model:
        raise RuntimeError("llama.cpp does not load it")
    options = llama_cpp.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = 256
    options.type_k = options.type_v = 0  # GGML_TYPE_F32
    options.flash_attn_type = 0
    options.n_threads = options.n_threads_batch = 1
    context = llama_cpp.llama_init_from_model(model, options)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for index, token in enumerate(tokens):
        batch.token[index] = token
        batch.pos[index] = index
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = 0
        batch.logits[index] = True
    if llama_cpp.llama_decode(context, batch):
        raise RuntimeError("llama.cpp does not compute it")
    rows = [
        np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, index), (vocab_size,)).copy()
        for index in range(len(tokens))
    ]
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return np.stack(rows)


def own_logits(path: Path, tokens: list[int]) -> Floats:
    """Return Potluck's logits at every position."""
    with closing(open_gguf(path)) as source:
        config = config_from_gguf(source.metadata, source, path=str(path))
        config = with_stored_head(config, frozenset(source.names()), FileKind.GGUF)
        with Stages(config, source, file_kind=FileKind.GGUF) as stages:
            return stages.logits_at_all_positions(tokens)


def compare(model: Model) -> dict[str, Any]:
    """Return the row that compares the logits for a model."""
    folder = Path(tempfile.mkdtemp())
    try:
        path = model.write(folder)
        tokens = random_tokens(NUM_TOKENS)
        own, peer = own_logits(path, tokens), peer_logits(with_vocabulary(path), tokens)
        return {
            "name": model.name,
            "family": model.family,
            "largest_difference": float(np.abs(own - peer).max()),
            "standard_deviation": float(own.std()),
            "same_greedy_tokens": float(np.mean(own.argmax(-1) == peer.argmax(-1))),
        }
    except RuntimeError as error:
        return {"name": model.name, "family": model.family, "error": str(error)}
    finally:
        shutil.rmtree(folder)


def compare_apart(name: str, family: str) -> dict[str, Any]:
    """Compute a row in a separate process, which llama.cpp may crash."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        command = [sys.executable, __file__, str(out), "--child", name]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            error = f"llama.cpp ended the process ({done.returncode})"
            return {"name": name, "family": family, "error": error}
        row: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return row


def main() -> None:
    """Compare, and write the result."""
    parser = documented_parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    known = {f"{model.family}/{model.name}": model for model in models()}
    if arguments.child:
        arguments.out.write_text(json.dumps(compare(known[arguments.child])), encoding="utf-8")
        return
    rows = []
    for name, model in known.items():
        if arguments.only and model.name not in arguments.only:
            continue
        rows.append(compare_apart(name, model.family))
        print(rows[-1], file=sys.stderr)
    document = {
        "schema": SCHEMA,
        "peer": f"llama-cpp-python {llama_cpp.__version__}",
        "circumstances": circumstances(),
        "rows": rows,
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
