"""Makes large models with random weights, in the shapes of models that people run.

    python benchmarks/shapes.py SHAPE DIRECTORY --type BF16     Hugging Face; F32, F16 or BF16
    python benchmarks/shapes.py SHAPE FILE.gguf --type Q4_0     GGUF; any format, or Q4_K_M

They are for measuring speed and memory, and speak nonsense. The tokenizer is that of ``demo``,
filled up to the shape's vocabulary with tokens that no text has. Weights come from a fixed seed
and are written a piece at a time, so that a model may be larger than the memory.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from command_line import documented_parser
from model_shapes import MAX_CONTEXT_TOKENS, SHAPES
from random_gguf import GGUF_TYPES, write_gguf
from random_hugging_face import FLOAT_TYPES, write_hugging_face


def made(path: Path, write: Callable[[Path], object]) -> Path:
    """Return ``path``; if it is missing, create it with ``write``, under another name until it is
    complete.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.part")
        write(unfinished)
        unfinished.rename(path)
    return path


def model_of(directory: Path, shape_name: str, type_name: str) -> Path:
    """Return the path of a model below ``directory``; make the model if it is missing."""
    shape, path = SHAPES[shape_name], directory / f"{shape_name}-{type_name}"
    if type_name in FLOAT_TYPES:
        return made(path, lambda each: write_hugging_face(shape, each, type_name))
    gguf_path = path.with_name(f"{path.name}.gguf")
    return made(gguf_path, lambda each: write_gguf(shape, each, type_name))


def main() -> None:
    """Write one model."""
    parser = documented_parser(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=GGUF_TYPES, default="BF16")
    parser.add_argument("--max-context", type=int, default=MAX_CONTEXT_TOKENS, help="of a .gguf")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.path.suffix == ".gguf":
        write_gguf(shape, arguments.path, arguments.type, arguments.max_context)
    elif shape.is_only_gguf:
        parser.error(f"{arguments.shape} is made as a .gguf file only")
    elif arguments.type not in FLOAT_TYPES:
        parser.error("in Hugging Face layout weights are floats; name a .gguf file for the others")
    else:
        write_hugging_face(shape, arguments.path, arguments.type)


if __name__ == "__main__":
    main()
