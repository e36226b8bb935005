"""Read the configuration of Mamba-2 mixers, and the names of their tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from potluck.models.fields import MAX_HEADS, MAX_KERNEL, MAX_WIDTH, Fields
from potluck.models.names import StoredPart, concatenated
from potluck.types.model import MambaConfig
from potluck.types.tensor import TensorSource

GGUF_KEYS = frozenset(
    {
        "ssm.conv_kernel",
        "ssm.group_count",
        "ssm.inner_size",
        "ssm.state_size",
        "ssm.time_step_rank",
    }
)
"""The keys that ``mamba_from_gguf`` implements."""


def mamba_config(
    fields: Fields,
    *,
    num_heads: int,
    head_dim: int,
    groups_key: str,
    state_key: str,
    kernel_key: str,
    steps: tuple[float, float | None] = (0.0, None),
    has_conv_bias: bool = True,
    has_bias: bool = False,
) -> MambaConfig:
    """Return a mixer with the sizes under these keys, and a norm for each group of heads.

    Raises unless its heads form groups of equal size.
    """
    num_groups = fields.count(groups_key, MAX_HEADS)
    if num_heads % num_groups:
        raise fields.error(groups_key, f"must divide {num_heads} heads")
    least, largest = steps
    return MambaConfig(
        num_heads=num_heads,
        head_dim=head_dim,
        num_groups=num_groups,
        state_dim=fields.count(state_key, MAX_WIDTH),
        kernel=fields.count(kernel_key, MAX_KERNEL, minimum=2),
        least_step=least,
        largest_step=largest,
        norm_groups=num_groups,
        has_conv_bias=has_conv_bias,
        has_bias=has_bias,
    )


def step_limits(fields: Fields) -> tuple[float, float | None]:
    """Return ``time_step_limit``, the minimum and maximum step; None if there is no maximum."""
    key = "time_step_limit"
    value = fields.get(key)
    if value is None:
        return 0.0, None
    problem = "must be two numbers in ascending order"
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise fields.error(key, problem)
    least, largest = (_number(each) for each in value)
    if least is None or largest is None or not 0 <= least < largest:
        raise fields.error(key, problem)
    return least, None if largest == float("inf") else largest


def _number(value: object) -> float | None:
    """Return a number in the notation of transformers, which uses an object for infinity."""
    if isinstance(value, Mapping):
        return float("inf") if dict(value) == {"__float__": "Infinity"} else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and isinstance(value, int | float) else None


def mamba_from_gguf(
    fields: Fields, source: TensorSource, has_attention: tuple[bool, ...]
) -> MambaConfig:
    """Return the mixer of the layers without attention; the tensors determine whether there are
    biases.
    """
    inner = fields.count("ssm.inner_size", MAX_WIDTH)
    num_heads = fields.count("ssm.time_step_rank", MAX_HEADS)
    if inner % num_heads:
        raise fields.error("ssm.inner_size", f"must be a multiple of {num_heads} heads")
    layer = has_attention.index(False)
    names = frozenset(source.names())
    return mamba_config(
        fields,
        num_heads=num_heads,
        head_dim=inner // num_heads,
        groups_key="ssm.group_count",
        state_key="ssm.state_size",
        kernel_key="ssm.conv_kernel",
        has_conv_bias=f"blk.{layer}.ssm_conv1d.bias" in names,
        has_bias=f"blk.{layer}.ssm_in.bias" in names,
    )


def hugging_face_names(stem: str, *, has_scales: bool = False) -> Mapping[str, str | StoredPart]:
    """Return the stems of a mixer that is the module ``stem`` of its layer.

    ``has_scales`` is set for families whose mixers have scales.
    """
    parts = ("x", "b", "c") if has_scales else ("x",)
    return {
        **_projection(f"{stem}.in_proj", parts),
        "mamba.kernel": StoredPart(name=f"{stem}.conv1d", is_flat=True),
        "mamba.rate.weight": StoredPart(name=f"{stem}.A_log", is_negative_exp=True),
        "mamba.step_bias.weight": f"{stem}.dt_bias",
        "mamba.skip.weight": f"{stem}.D",
        "mamba.norm": f"{stem}.norm",
        "mamba.out": f"{stem}.out_proj",
    }


def _projection(name: str, parts: Sequence[str] = ("x",)) -> Mapping[str, StoredPart]:
    """Return the parts of the input projection; the gate is first and the steps are last."""
    return concatenated(name, *(f"mamba.{part}" for part in ("gate", *parts, "step")))


GGUF_NAMES: Mapping[str, str | StoredPart] = {
    **_projection("ssm_in"),
    "mamba.kernel": StoredPart(name="ssm_conv1d", is_flat=True),
    "mamba.rate.weight": "ssm_a",
    "mamba.step_bias.weight": "ssm_dt.bias",
    "mamba.skip.weight": "ssm_d",
    "mamba.norm": StoredPart(name="ssm_norm", is_flat=True),
    "mamba.out": "ssm_out",
}
"""The stems of a mixer in GGUF files."""
