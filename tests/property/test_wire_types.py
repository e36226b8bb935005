"""What passes validation goes over every wire, comes out equal, and is taken by the core.

Steps are encoded, decoded and bound in threads that all requests of a deployment share: one number
that does not fit would end it for everybody.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.engines.pools import pool_of

from potluck.api.dialects.openai import bodies
from potluck.cluster.wire import calls, sequence_messages, worker_messages
from potluck.cluster.wire.steps import StepDecoder, StepEncoder, decode_sampled, encode_sampled
from potluck.engines.native.engine import available_isas
from potluck.engines.native.program import core_opening, core_slice
from potluck.errors import CallError, EngineError, ParameterError
from potluck.kernels import runner
from potluck.types.cluster import DeploymentId
from potluck.types.deployment import DeploymentRecord
from potluck.types.groups import GroupPart
from potluck.types.program import Shard
from potluck.types.ranges import RANGES, require_number
from potluck.types.sampling import validate_sampling
from potluck.types.sequence import SequenceRequest
from potluck.types.step import (
    SampledToken,
    SamplingParams,
    SequenceId,
    SequenceOpening,
    SequenceSlice,
    Step,
    StepId,
    TokenLogprob,
)

VOCAB = 300

SMALLEST = 5e-324
INTEGERS = st.sampled_from(
    [
        s * (b + d)
        for b in (0, 1, 2**31, 2**53, 2**63, 2**64, 10**400)
        for d in (-1, 0, 1)
        for s in (1, -1)
    ]
) | st.integers(-100, 1000)
FLOATS = st.floats() | st.sampled_from(
    [SMALLEST, -SMALLEST, 1e-46, 1e-38, 1.0, 1 + 2**-52, 3.4e38, 1.7e308, 0.01, 0.1, 2.0, 100.0]
)
WILD = INTEGERS | FLOATS | st.sampled_from([None, True, False, "1", (1,)])
"""What a caller from Python, or a defect in front of the validation, may come up with."""


def in_range(name: str) -> st.SearchStrategy[Any]:
    allowed = RANGES[name]
    least, most = allowed.least, allowed.most
    return st.integers(int(least), int(most)) if allowed.is_whole else st.floats(least, most)


TOKENS = st.integers(0, VOCAB - 1)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **{
        name: in_range(name)
        for name in (
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "seed",
            "top_logprobs",
        )
    },
    "logit_bias": st.lists(st.tuples(TOKENS, in_range("logit_bias")), max_size=3).map(tuple),
    "logprobs": st.just(value=True),
}
ODD: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(FIELDS, WILD),
    "logit_bias": st.tuples(st.tuples(TOKENS, WILD) | st.tuples(WILD, in_range("logit_bias"))),
}


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    """Parameters in their ranges, but for at most one."""
    values = {name: draw(strategy) for name, strategy in FIELDS.items()}
    odd = draw(st.none() | st.sampled_from(sorted(FIELDS)))
    if odd is not None:
        values[odd] = draw(ODD[odd])
    return SamplingParams(**values)


@cache
def sampler() -> runner.Sampler:
    return runner.Sampler(vocab_size=VOCAB, isa=available_isas()[-1], pool=pool_of(1))


@pytest.mark.slow
@settings(max_examples=400)
@given(params=sampling_params())
def test_sampling_that_is_accepted_passes_every_wire_and_the_core_takes_it(
    params: SamplingParams,
) -> None:
    try:
        validate_sampling(params, VOCAB)
    except ParameterError:
        assume(False)
    request = SequenceRequest(prompt_tokens=(1, 2), sampling=params, max_new_tokens=3)
    generate = sequence_messages.Generate(deployment=DeploymentId("d"), request=request)
    assert calls.decode(calls.encode(generate), sequence_messages.Generate) == generate
    opening = SequenceOpening(sequence_id=SequenceId(0), sampling=params, prompt_tokens=(1, 2))
    part = SequenceSlice(
        sequence_id=SequenceId(0), tokens=(1, 2), start_position=0, block_table=(0,), sample=True
    )
    step = Step(step_id=StepId(0), slices=(part,), opened=(opening,))
    decoder = StepDecoder(is_first=True, is_last=True)
    decoded = decoder.decode(StepId(0), StepEncoder().encode(step))
    is_prompt_needed = params.repetition_penalty != 1.0
    needed = opening if is_prompt_needed else replace(opening, prompt_tokens=())
    assert decoded == replace(step, opened=(needed,))
    core_slice(decoded.slices[0])
    sampler().open([core_opening(decoded.opened[0])])
    try:
        rows = [[math.sin(7.0 * token) for token in range(VOCAB)]]
        (chosen,) = sampler().sample([(0, 2)], as_logits(rows))
    finally:
        sampler().close(0)
    assert 0 <= chosen.token < VOCAB
    top = tuple(TokenLogprob(token=one.token, logprob=one.logprob) for one in chosen.top)
    result = SampledToken(
        sequence_id=SequenceId(0), position=2, token=chosen.token, logprob=chosen.logprob, top=top
    )
    assert decode_sampled(encode_sampled((result,))) == (result,)
    cut_off = msgspec.structs.replace(result, is_cut_off=True)
    assert decode_sampled(encode_sampled((cut_off,))) == (cut_off,)


def as_logits(rows: list[list[float]]) -> Any:
    import numpy as np

    return np.array(rows, dtype=np.float32)


@given(name=st.sampled_from(sorted(RANGES)), value=WILD)
def test_what_is_in_a_range_is_a_number_that_msgpack_keeps(name: str, value: object) -> None:
    if not RANGES[name].holds(value):
        with pytest.raises(ParameterError, match=name) as refused:
            require_number(name, value)
        assert len(refused.value.message) < 300
        return
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(value))
    assert (type(kept), kept) == (type(value), value)


@pytest.mark.parametrize("body", [bodies.ChatBody, bodies.CompletionBody])
def test_every_number_of_a_body_has_a_range(body: type) -> None:
    """A field that is added without one would bring back what this module is for."""
    numbers = {
        name
        for name, hint in get_type_hints(body).items()
        if {"int", "float"}
        & set(
            str(hint)
            .replace("|", " ")
            .replace("[", " ")
            .replace("]", " ")
            .replace(",", " ")
            .replace("<class '", " ")
            .replace("'>", " ")
            .split()
        )
    }
    assert {"top_k", "n", "seed"} <= numbers
    assert numbers <= RANGES.keys()


# Everything that agents, coordinators and workers say to one another, generated from its types.


def wire_types(module: ModuleType) -> list[type]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == module.__name__
    ]


def values_of(kind: msgspec.inspect.Type) -> st.SearchStrategy[Any]:
    """Values of a type as msgspec describes it."""
    inspect = msgspec.inspect
    match kind:
        case inspect.IntType():
            least = kind.ge if kind.gt is None else kind.gt + 1
            most = kind.le if kind.lt is None else kind.lt - 1
            return st.integers(
                -(2**63) if least is None else least, 2**64 - 1 if most is None else most
            )
        case inspect.FloatType():
            return st.floats(allow_nan=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType():
            return st.text(max_size=5)
        case inspect.BytesType():
            return st.binary(
                min_size=kind.min_length or 0,
                max_size=5 if kind.max_length is None else kind.max_length,
            )
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.VarTupleType():
            return st.lists(values_of(kind.item_type), max_size=2).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(values_of, kind.item_types))
        case inspect.ListType():
            return st.lists(values_of(kind.item_type), max_size=2)
        case inspect.FrozenSetType():
            return st.frozensets(values_of(kind.item_type), max_size=2)
        case inspect.DictType():
            return st.dictionaries(values_of(kind.key_type), values_of(kind.value_type), max_size=2)
        case inspect.Metadata():
            return values_of(kind.type)
        case inspect.UnionType():
            return st.one_of(*map(values_of, kind.types))
        case inspect.DataclassType(cls=cls) if cls is GroupPart:
            return group_parts()
        case inspect.DataclassType(cls=cls) if cls is Shard:
            return shards()
        case inspect.StructType() | inspect.DataclassType():
            fields = {each.name: values_of(each.type) for each in kind.fields}
            return st.builds(kind.cls, **fields)
    raise AssertionError(f"no values are known for {kind}")


@cache
def any_of(kind: type) -> st.SearchStrategy[Any]:
    """Values of ``kind``, made once: a new strategy is validated again for every draw."""
    return values_of(msgspec.inspect.type_info(kind))


@st.composite
def group_parts(draw: st.DrawFn) -> GroupPart:
    """Any part of a group that there can be."""
    shares = draw(st.lists(st.integers(1, 2**64 - 1), min_size=2, max_size=4))
    return GroupPart(member=draw(st.integers(0, len(shares) - 1)), shares=tuple(shares))


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    """The layers of any possible stage."""
    layers = st.integers(0, 2**63)
    start, end, num_layers = sorted(draw(st.tuples(layers, layers, layers)))
    return Shard(
        start_layer=start,
        end_layer=end,
        num_layers=num_layers,
        has_embedding=draw(st.booleans()),
        has_head=draw(st.booleans()),
        part=draw(st.none() | group_parts()),
    )


@pytest.mark.parametrize(
    "part", [{"member": 0, "shares": []}, {"member": 2, "shares": [1, 1]}, {"member": -1}]
)
def test_a_part_that_no_group_has_is_a_malformed_message(part: dict[str, object]) -> None:
    payload = calls.encode(part)
    with pytest.raises(CallError, match="a malformed message"):
        calls.decode(payload, GroupPart)


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (2, 1), (0, 5)])
def test_layers_that_no_model_has_are_a_malformed_message(start: int, end: int) -> None:
    payload = calls.encode({"start_layer": start, "end_layer": end, "num_layers": 4})
    with pytest.raises(CallError, match="a malformed message"):
        calls.decode(payload, Shard)


WIRE_TYPES = [
    each for module in (calls, sequence_messages, worker_messages) for each in wire_types(module)
]


@pytest.mark.slow
@settings(
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@pytest.mark.parametrize("kind", WIRE_TYPES, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_whatever_a_message_holds_it_comes_out_equal(kind: type, data: st.DataObject) -> None:
    value = data.draw(any_of(kind))
    assert calls.decode(calls.encode(value), kind) == value


def test_an_error_of_any_text_can_be_told() -> None:
    """Paths of files need not be UTF-8, and stand in errors as lone surrogates."""
    error = EngineError("no file \udcff.gguf", hint="look at \udcff")
    failure = sequence_messages.GenerateFailure.of(error)
    assert calls.decode(calls.encode(failure), sequence_messages.GenerateFailure) == failure


@given(st.binary(max_size=40))
def test_bytes_that_make_no_sense_fail_a_call_and_nothing_else(payload: bytes) -> None:
    for kind in (sequence_messages.Generate, calls.StageLost, DeploymentRecord):
        with pytest.raises(CallError):
            calls.decode(payload, kind)


def test_text_that_is_no_utf_8_fails_a_call_and_nothing_else() -> None:
    payload = msgspec.msgpack.encode({"deployment": "xx"}).replace(b"xx", b"\xff\xfe")
    with pytest.raises(CallError):
        calls.decode(payload, calls.DeploymentReference)
