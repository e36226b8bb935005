"""Read the encoding of a model's weights from ``quantization_config``.

Keys and their meaning are those of ``transformers`` 5 (``utils/quantization_config.py``), AutoGPTQ
and GPTQModel, AutoAWQ, and ``compressed-tensors``. The quantization of activations and of the
key-value cache is ignored, because Potluck keeps them more precisely. All other unknown settings
are refused, with their names in the error.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import quoted

KEY = "quantization_config"

BLOCK_COLUMNS = 32
"""A group of columns with one scale must consist of whole blocks of the target formats."""

_MAX_SIZE = 2**20


class Layout(enum.Enum):
    """How 4-bit or 8-bit integers are packed into 32-bit words, the lowest bits first.

    ROWS: the words of a row are adjacent, each with columns in ascending order
    (compressed-tensors). GPTQ: the same words, transposed. AWQ: words ``[columns, rows / 8]``, with
    nibbles in the order of rows ``AWQ_ORDER``. BYTES: one int8 per integer, not packed.
    """

    ROWS = "rows"
    GPTQ = "gptq"
    AWQ = "awq"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatEncoding:
    """8-bit values (E4M3) times scales.

    ``block`` is the number of rows and columns that share a scale; None if the shape of the scales
    determines it: one for the tensor, or one for each row.
    """

    block: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerEncoding:
    """Integers of ``num_bits``, less a zero point, times scales.

    ``group_columns`` consecutive values in a row share a scale; None means the whole row. With
    ``is_symmetric`` the zero point is the middle of the range. ``zero_offset`` must be added to
    stored zero points.
    """

    layout: Layout
    num_bits: int
    group_columns: int | None
    is_symmetric: bool
    zero_offset: int = 0


_ACTIVATION_SCALES = re.compile(
    r".*\.(input_scale|activation_scale|input_scale_ub|[qkv]_scale|kv_scale|prob_scale|"
    r"output_scale_inv)"
)
"""Names of scales of activations and of the cache, which are ignored."""

_WEIGHT = ".weight"
_PACKED_INTEGERS: Mapping[Layout, tuple[str, ...]] = {
    Layout.ROWS: (".weight_packed", ".weight_scale", ".weight_shape", ".weight_zero_point"),
    Layout.GPTQ: (".qweight", ".scales", ".qzeros", ".g_idx"),
    Layout.AWQ: (".qweight", ".scales", ".qzeros"),
    Layout.BYTES: (),
}
"""The suffix of packed integers, which replaces ``.weight``, and then the suffixes of their
companion tensors; none if they are not packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """How a model stores its quantized weights. Some weights may be stored without quantization.

    ``has_mxfp4`` means blocks of OCP's MXFP4, ``…_blocks`` and ``…_scales`` (gpt-oss).
    """

    method: str
    floats: FloatEncoding | None = None
    integers: IntegerEncoding | None = None
    has_mxfp4: bool = False

    def shown_names(self, stored: Iterable[str]) -> tuple[str, ...]:
        """Return the names under which the weights in files with tensors ``stored`` are shown."""
        names = tuple(stored)
        present = frozenset(names)
        shown: list[str] = []
        for name in names:
            if (base := self._base_of(name)) is not None:
                shown.append(base)
            elif not self._is_part_of_another(name, present):
                shown.append(name)
        return tuple(shown)

    def possible_parts(self, name: str) -> tuple[str, ...]:
        """Return the possible names of the stored tensors of the weight shown as ``name``."""
        return (name, *self.companions(name), *self.packed_parts(name), *self.mxfp4_parts(name))

    def companions(self, name: str) -> tuple[str, ...]:
        """Return the possible names of the scales of values that are stored under ``name``."""
        has_bytes = self.integers is not None and self.integers.layout is Layout.BYTES
        if self.floats is None and not has_bytes:
            return ()
        scale = (f"{name}_scale",) if name.endswith(_WEIGHT) else ()
        return (f"{name}_scale_inv", *scale)

    def packed_parts(self, name: str) -> tuple[str, ...]:
        """Return the stored names of packed integers shown as ``name``, the integers first."""
        if not name.endswith(_WEIGHT):
            return ()
        stem = name.removesuffix(_WEIGHT)
        return tuple(f"{stem}{suffix}" for suffix in self._packed_suffixes)

    def mxfp4_parts(self, name: str) -> tuple[str, ...]:
        """Return the stored names of MXFP4 blocks shown as ``name``: values, and then scales."""
        return (f"{name}_blocks", f"{name}_scales") if self.has_mxfp4 else ()

    @property
    def _packed_suffixes(self) -> tuple[str, ...]:
        return () if self.integers is None else _PACKED_INTEGERS[self.integers.layout]

    def _base_of(self, name: str) -> str | None:
        """Return the name under which encoded values are shown; None for any other tensor."""
        if self.has_mxfp4 and name.endswith("_blocks"):
            return name.removesuffix("_blocks")
        if self._packed_suffixes and name.endswith(self._packed_suffixes[0]):
            return f"{name.removesuffix(self._packed_suffixes[0])}{_WEIGHT}"
        return None

    def _is_part_of_another(self, name: str, present: frozenset[str]) -> bool:
        if self.has_mxfp4 and name.endswith("_scales"):
            return f"{name.removesuffix('_scales')}_blocks" in present
        for suffix in self._packed_suffixes[1:]:
            if name.endswith(suffix):
                packed = name.removesuffix(suffix) + self._packed_suffixes[0]
                if packed in present:
                    return True
        if self.floats is not None or self.integers is not None:
            if _ACTIVATION_SCALES.fullmatch(name) is not None:
                return True
            for ending in ("_scale_inv", "_scale"):
                base = name.removesuffix(ending)
                if name.endswith(ending) and name in self.companions(base):
                    return base in present
        return False


def read_encoding(config: Mapping[str, object], *, path: str = "config.json") -> Encoding | None:
    """Return the encoding in a ``config.json``, or None if weights are not encoded.

    Raise ``UnsupportedModelError``, naming a method or setting that this build cannot read, and
    ``ModelFileError`` if values are invalid.
    """
    value = config.get(KEY)
    if not value and isinstance(text := config.get("text_config"), Mapping):
        value = text.get(KEY)
    if value is None or value == {}:
        return None
    if not isinstance(value, Mapping):
        raise ModelFileError(path, f"{KEY} must be an object")
    settings = _Settings(value, path)
    method = value.get("quant_method")
    reader = _READERS.get(method) if isinstance(method, str) else None
    if reader is None:
        shown = method if isinstance(method, str) else f"{{{', '.join(map(str, value))}}}"
        _refuse(f"{KEY}={shown}")
    return reader(settings)


class _Settings:
    """The values of ``quantization_config``, or of a part of it."""

    def __init__(self, values: Mapping[str, object], path: str, prefix: str = f"{KEY}.") -> None:
        self.values = values
        self.path = path
        self.prefix = prefix

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Refuse keys that are not ``known`` and whose values are not neutral, by name."""
        unknown = [
            self._shown(key)
            for key, value in self.values.items()
            if key not in known and value not in (None, False, "", [], {})
        ]
        if unknown:
            _refuse(*unknown)

    def refuse_unless(self, key: str, *allowed: object) -> None:
        """Refuse the value of ``key``, by name, unless it is absent or one of ``allowed``."""
        value = self.values.get(key)
        if value is not None and value not in allowed:
            _refuse(self._shown(key))

    def count(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelFileError(self.path, f"{self.prefix}{key} must be an integer")
        if not minimum <= value <= _MAX_SIZE:
            raise ModelFileError(self.path, f"{self.prefix}{key} is out of range: {value}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelFileError(self.path, f"{self.prefix}{key} must be true or false")
        return value

    def block(self, key: str) -> tuple[int, int] | None:
        """Return the number of rows and columns that share a scale."""
        value = self.values.get(key)
        if value is None:
            return None
        if (
            not isinstance(value, list | tuple)
            or len(value) != 2
            or not all(type(each) is int and 0 < each <= _MAX_SIZE for each in value)
        ):
            raise ModelFileError(self.path, f"{self.prefix}{key} must be two positive numbers")
        if value[1] < BLOCK_COLUMNS:  # each would need its own table
            _refuse(f"{self._shown(key)} (fewer than {BLOCK_COLUMNS} columns)")
        return value[0], value[1]

    def group_columns(self, key: str, default: int | None) -> int | None:
        """Return the number of columns that share a scale; None for whole rows, -1 in the files."""
        size = self.count(key, default, minimum=-1)
        if size == -1:
            return None
        if size < 1 or size % BLOCK_COLUMNS:
            _refuse(f"{self._shown(key)} (not a multiple of {BLOCK_COLUMNS})")
        return size

    def section(self, key: str) -> _Settings | None:
        value = self.values.get(key)
        if value is None or value == {}:
            return None
        if not isinstance(value, Mapping):
            raise ModelFileError(self.path, f"{self.prefix}{key} must be an object")
        return _Settings(value, self.path, f"{self.prefix}{key}.")

    def _shown(self, key: str) -> str:
        value = self.values.get(key)
        shown = f"{{{', '.join(map(str, value))}}}" if isinstance(value, Mapping) else str(value)
        return f"{self.prefix}{key}={shown}"


_ANYWHERE = frozenset({"quant_method", "modules_to_not_convert", "ignored_layers"})
"""Settings of every method. The stored tensors show which of them are quantized."""


def _fp8(settings: _Settings) -> Encoding:
    settings.refuse_unknown(
        _ANYWHERE
        | {"activation_scheme", "weight_block_size", "dequantize", "fmt", "scale_fmt"}
        | {"modules_to_convert", "expert_dtype"}
    )
    settings.refuse_unless("fmt", "e4m3", "float8_e4m3fn")
    settings.refuse_unless("scale_fmt", "float", "ue8m0")
    settings.refuse_unless("expert_dtype", "fp8")
    settings.refuse_unless("activation_scheme", "dynamic", "static")
    block = settings.block("weight_block_size")
    if "weight_block_size" not in settings.values:
        block = (128, 128)
    return Encoding(method="fp8", floats=FloatEncoding(block=block))


def _fbgemm_fp8(settings: _Settings) -> Encoding:
    settings.refuse_unknown(_ANYWHERE | {"activation_scale_ub"})
    return Encoding(method="fbgemm_fp8", floats=FloatEncoding())


def _mxfp4(settings: _Settings) -> Encoding:
    settings.refuse_unknown(_ANYWHERE)
    return Encoding(method="mxfp4", has_mxfp4=True)


_GPTQ_NOTES = frozenset(
    {
        "act_group_aware",
        "backend",
        "batch_size",
        "block_name_to_quantize",
        "cache_block_outputs",
        "damp_auto_increment",
        "damp_percent",
        "dataset",
        "disable_exllama",
        "exllama_config",
        "lm_head",
        "max_input_length",
        "meta",
        "model_file_base_name",
        "model_name_or_path",
        "model_seqlen",
        "modules_in_block_to_quantize",
        "module_name_preceding_first_block",
        "mse",
        "pad_token_id",
        "static_groups",
        "tokenizer",
        "true_sequential",
        "use_cuda_fp16",
        "use_exllama",
    }
)
"""Settings of AutoGPTQ, optimum and GPTQModel about how a model was quantized, or about kernels."""


def _gptq(settings: _Settings) -> Encoding:
    settings.refuse_unknown(
        _ANYWHERE
        | _GPTQ_NOTES
        | {"bits", "group_size", "desc_act", "sym", "checkpoint_format", "format", "pack_dtype"}
    )
    settings.refuse_unless("checkpoint_format", "gptq", "gptq_v2")
    settings.refuse_unless("format", "gptq", "gptq_v2")
    settings.refuse_unless("pack_dtype", "int32")
    group_columns = settings.group_columns("group_size", 128)
    is_static = settings.flag("static_groups", default=False)
    if group_columns is not None and not is_static:
        settings.refuse_unless("desc_act", False)  # reordered columns
    stored_format = settings.values.get("checkpoint_format") or settings.values.get("format")
    return Encoding(
        method="gptq",
        integers=_integers(
            settings,
            Layout.GPTQ,
            settings.count("bits"),
            group_columns,
            is_symmetric=settings.flag("sym", default=True),
            zero_offset=0 if stored_format == "gptq_v2" else 1,
        ),
    )


def _awq(settings: _Settings) -> Encoding:
    settings.refuse_unknown(
        _ANYWHERE
        | {"bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format"}
        | {"backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"}
    )
    settings.refuse_unless("version", "gemm", "GEMM")
    settings.refuse_unless("format", "gemm", "GEMM")
    settings.refuse_unless("backend", "autoawq", "auto")
    settings.refuse_unless("zero_point", True)
    bits, group = "bits", "group_size"
    if "w_bit" in settings.values:
        bits, group = "w_bit", "q_group_size"
    num_bits = settings.count(bits, 4)
    settings.refuse_unless(bits, 4)
    return Encoding(
        method="awq",
        integers=_integers(
            settings,
            Layout.AWQ,
            num_bits,
            settings.group_columns(group, 128),
            is_symmetric=False,
        ),
    )


def _compressed_tensors(settings: _Settings) -> Encoding:
    settings.refuse_unknown(
        _ANYWHERE
        | {"config_groups", "format", "ignore", "quantization_status", "version"}
        | {"global_compression_ratio", "kv_cache_scheme", "sparsity_config"}
    )
    settings.refuse_unless("quantization_status", "compressed", "frozen")
    sparsity = settings.section("sparsity_config")
    if sparsity is not None:
        sparsity.refuse_unless("format", "dense")
    groups = settings.section("config_groups")
    if groups is None:
        raise ModelFileError(settings.path, f"{settings.prefix}config_groups is missing")
    floats: set[FloatEncoding] = set()
    integers: set[IntegerEncoding] = set()
    for name in groups.values:
        group = groups.section(name)
        if group is None:
            continue
        group.refuse_unknown({"targets", "weights", "input_activations", "format"})
        weights = group.section("weights")
        if weights is None:
            continue
        stored_format = group.values.get("format") or settings.values.get("format")
        if stored_format in ("float-quantized", "naive-quantized") and (
            weights.values.get("type") == "float"
        ):
            floats.add(_compressed_floats(weights))
        elif stored_format in ("int-quantized", "naive-quantized", "pack-quantized"):
            is_packed = stored_format == "pack-quantized"
            integers.add(_compressed_integers(weights, is_packed=is_packed))
        else:
            _refuse(f"{settings.prefix}format={stored_format}")
    if len(floats) > 1 or len(integers) > 1:
        _refuse(f"{settings.prefix}config_groups of several kinds")
    return Encoding(
        method="compressed-tensors",
        floats=next(iter(floats), None),
        integers=next(iter(integers), None),
    )


_COMPRESSED_WEIGHTS = frozenset(
    {"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "actorder"}
    | {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}
)


def _compressed_floats(weights: _Settings) -> FloatEncoding:
    weights.refuse_unknown(_COMPRESSED_WEIGHTS)
    weights.refuse_unless("num_bits", 8)
    weights.refuse_unless("symmetric", True)
    weights.refuse_unless("strategy", "tensor", "channel", "block")
    if weights.values.get("strategy") != "block":
        return FloatEncoding()
    return FloatEncoding(block=weights.block("block_structure") or (128, 128))


def _compressed_integers(weights: _Settings, *, is_packed: bool) -> IntegerEncoding:
    weights.refuse_unknown(_COMPRESSED_WEIGHTS)
    weights.refuse_unless("type", "int")
    weights.refuse_unless("strategy", "tensor", "channel", "group")
    weights.refuse_unless("actorder", False, "weight", "static")
    group_columns = None
    if weights.values.get("strategy") == "group":
        group_columns = weights.group_columns("group_size", None)
    num_bits = weights.count("num_bits", 8)
    if not is_packed:
        weights.refuse_unless("num_bits", 8)
    return _integers(
        weights,
        Layout.ROWS if is_packed else Layout.BYTES,
        num_bits,
        group_columns,
        is_symmetric=weights.flag("symmetric", default=True),
    )


def _integers(
    settings: _Settings,
    layout: Layout,
    num_bits: int,
    group_columns: int | None,
    *,
    is_symmetric: bool,
    zero_offset: int = 0,
) -> IntegerEncoding:
    """Return an encoding that a supported format represents exactly, and refuse any other."""
    if num_bits not in (4, 8) or (num_bits == 8 and not is_symmetric):
        kind = "" if is_symmetric else ", with zero points"
        _refuse(f"{settings.prefix}bits={num_bits}{kind}")
    return IntegerEncoding(
        layout=layout,
        num_bits=num_bits,
        group_columns=group_columns,
        is_symmetric=is_symmetric,
        zero_offset=zero_offset,
    )


_READERS: Mapping[str, Callable[[_Settings], Encoding]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
}


def _refuse(*features: str) -> NoReturn:
    shown = tuple(_printable(each) for each in features)
    raise UnsupportedModelError(
        f"the model requires unsupported features: {', '.join(shown)}",
        missing=shown,
        hint="choose other files of the same model: GGUF, or safetensors in BF16, FP8, MXFP4, "
        "GPTQ or AWQ",
    )


def _printable(text: str) -> str:
    return text if text.isprintable() and len(text) < 200 else quoted(text)
