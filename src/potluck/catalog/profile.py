"""Read a model's profile from its headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from potluck.catalog.description import ModelDescription, open_headers
from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.source import FileTensorSource
from potluck.models.names import layer_tensor
from potluck.models.program import weight_specs
from potluck.models.registry import stored_weights
from potluck.types.profile import BytesByFormat, ModelProfile, UnusableTensor
from potluck.types.program import Shard, WeightSpec
from potluck.types.tensor import TensorInfo


def read_profile(
    description: ModelDescription, shards: Iterable[Shard] | None = None
) -> ModelProfile:
    """Read the headers of the model's files, or only of those that contain ``shards``.

    The profile covers all tensors of the model, or those of ``shards``. Tensors that are missing or
    cannot be loaded are not an error here, but only for stages that read them. Raise the errors of
    ``open_headers``.
    """
    from potluck.weights.canonical import CanonicalSource

    config = description.config
    path = description.files.label
    wanted = [Shard.whole(config.num_layers)] if shards is None else list(shards)
    weights = list(
        {spec.name: spec for shard in wanted for spec in weight_specs(config, shard)}.values()
    )
    tensors: dict[str, TensorInfo] = {}
    unusable: dict[str, UnusableTensor] = {}
    decoding_bytes = 0
    with closing(open_headers(description, None if shards is None else wanted)) as raw:
        stored = stored_weights(config, weights, description.files.kind)
        source = CanonicalSource(raw, stored, path=path)
        parts = {each.canonical_name: each.stored_names for each in stored}
        for name in source.names():
            try:
                tensors[name] = source.info(name)
                decoding_bytes = max(
                    decoding_bytes,
                    source.transposing_bytes(name),
                    *map(raw.decoding_bytes, parts[name]),
                )
            except UnsupportedModelError as error:
                unusable[name] = UnusableTensor(
                    problem=error.message, hint=error.hint, missing=error.missing
                )
            except ModelFileError as error:
                unusable[name] = UnusableTensor(
                    problem=error.problem, hint=error.hint, path=error.path
                )
        file_names = {
            spec.name: _with_file(source.name_in_files(spec.name), raw) for spec in weights
        }

    def stored_bytes(specs: Iterable[WeightSpec]) -> BytesByFormat:
        num_bytes: Counter[str] = Counter()
        for spec in specs:
            if (info := tensors.get(spec.name)) is not None:
                num_bytes[info.format.label] += info.num_bytes
        return tuple(num_bytes.most_common())

    last = config.num_layers
    all_specs = weight_specs(config, Shard.whole(last))

    def of_layer(layer: int) -> Iterable[WeightSpec]:
        # A single layer may not be a valid shard: some layers share keys and values with others.
        return (spec for spec in all_specs if spec.name.startswith(layer_tensor(layer, "")))

    embedding = Shard(start_layer=0, end_layer=0, num_layers=last, has_embedding=True)
    head = Shard(start_layer=last, end_layer=last, num_layers=last, has_head=True)
    return ModelProfile(
        config=config,
        path=path,
        tensors=MappingProxyType(tensors),
        file_names=MappingProxyType(file_names),
        unusable=MappingProxyType(unusable),
        layer_bytes=tuple(stored_bytes(of_layer(layer)) for layer in range(last)),
        embedding_bytes=stored_bytes(weight_specs(config, embedding)),
        decoding_bytes=decoding_bytes,
        head_bytes=stored_bytes(weight_specs(config, head)),
    )


def _with_file(name: str, raw: FileTensorSource) -> str:
    tensor = raw.tensors.get(name)
    if tensor is None or len(raw.files) == 1:
        return name
    return f"{name} in {Path(tensor.file.path).name}"
