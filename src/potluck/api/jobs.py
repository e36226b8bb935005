"""From what a client asks to the sequences that answer it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potluck.api.asked import Asked, ChatAsked, TextAsked
from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, invalid
from potluck.errors import PromptTooLongError
from potluck.types.gateway import ServedModel
from potluck.types.output import OutputParser, ToolMode, ToolUse
from potluck.types.ranges import require_number
from potluck.types.sampling import merged_sampling, validate_sampling
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams
from potluck.types.text import ChatEnding, ChatPrompt, GapEncoder

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""OpenAI takes 4 strings. The automaton that finds them has a state per character."""

_SEEDS = 1 << 64
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The sequences that answer one request, in the order of their ``index``.

    ``num_prompt_tokens`` counts every prompt once, however many sequences continue it.
    ``starts_text`` is as in ``StreamingDetokenizer``. ``echoes`` are the prompts as texts, where
    they are given back. ``new_parser`` makes what takes one output apart, which sees the
    ``visible_control_texts``; None: all of it is text. The requests' grammar follows from the field
    ``grammar_param``. ``hidden_tokens`` give no text, whatever they stand for.
    """

    model: ServedModel
    requests: tuple[SequenceRequest, ...]
    stop: tuple[str, ...]
    num_prompt_tokens: int
    starts_text: bool
    echoes: tuple[str | None, ...]
    new_parser: Callable[[], OutputParser] | None = None
    visible_control_texts: frozenset[str] = frozenset()
    grammar_param: str = ""
    hidden_tokens: frozenset[int] = frozenset()


def empty_job(model: ServedModel) -> Job:
    """What answers a request that asks for nothing but that the model is there."""
    return Job(model=model, requests=(), stop=(), num_prompt_tokens=0, starts_text=False, echoes=())


def chat_job(asked: ChatAsked, model: ServedModel, limits: ApiLimits) -> Job:
    """What answers a chat. Takes a while for long ones. Raises ``PotluckError``."""
    _require_logits(model)
    sampling = _sampling(asked, model)
    max_new_tokens = asked.max_new_tokens
    if max_new_tokens is not None:
        require_number("max_tokens", max_new_tokens)
    count = _num_choices(asked, 1, limits)
    stop = _stop(asked)
    tool_use = asked.tool_use
    encoded = chat_prompt(asked, model)
    prompt = checked_prompt(encoded.tokens, model, limits, "messages")
    output_format = model.output_format
    grammar = asked.grammar
    new_parser: Callable[[], OutputParser] | None = None
    if output_format is not None:
        grammar = output_format.grammar(
            tool_use if asked.grammar is None else _strict(tool_use),
            prompt_end=encoded.turn,
            response=asked.grammar,
        )
        new_parser = partial(output_format.parser, tool_use, prompt_end=encoded.turn)
    elif tool_use.tools and tool_use.mode is not ToolMode.NONE:
        raise invalid("tools", "the model has no chat template that knows tools")
    return Job(
        model=model,
        requests=_requests([prompt], count, sampling, max_new_tokens, model, grammar=grammar),
        stop=stop,
        num_prompt_tokens=len(prompt),
        starts_text=asked.ending is ChatEnding.NEW_TURN,
        echoes=(None,) * count,
        new_parser=new_parser,
        visible_control_texts=frozenset() if output_format is None else output_format.control_texts,
        grammar_param="tools" if asked.grammar is None else asked.grammar_param,
    )


def _strict(tool_use: ToolUse) -> ToolUse:
    """The tools where an answer must have a form: calls instead of it have one, too."""
    return replace(tool_use, tools=tuple(replace(tool, is_strict=True) for tool in tool_use.tools))


def chat_prompt(asked: ChatAsked, model: ServedModel) -> ChatPrompt:
    """Return the prompt of a chat. Takes a while for long ones. Raises ``PotluckError``."""
    if not asked.messages:
        raise invalid("messages", "messages is empty: say something")
    tool_use = asked.tool_use
    return model.encode_chat(
        asked.messages,
        ending=asked.ending,
        reasoning_effort=asked.reasoning_effort,
        tools=() if tool_use.mode is ToolMode.NONE else tool_use.tools,
        thinks=asked.thinks,
        template_variables=asked.template_variables,
    )


def text_job(asked: TextAsked, model: ServedModel, limits: ApiLimits) -> Job:
    """What continues a prompt, or several. Takes a while for long ones. Raises ``PotluckError``."""
    _require_logits(model)
    sampling = _sampling(asked, model)
    max_new_tokens = asked.max_new_tokens
    if max_new_tokens is not None and not (max_new_tokens == 0 and asked.echo):
        require_number("max_tokens", max_new_tokens)
    num_new_tokens = 1 if max_new_tokens is None else min(1, max_new_tokens)
    stop = _stop(asked)
    count = _num_choices(asked, len(asked.prompts), limits)
    ends: frozenset[int] = frozenset()
    if asked.suffix is not None:
        ends = _checked_gap(asked, model).ends
    encoded = [
        checked_prompt(
            _text_tokens(asked, prompt, model, model.context_tokens - num_new_tokens),
            model,
            limits,
            "prompt",
            num_new_tokens=num_new_tokens,
        )
        for prompt in asked.prompts
    ]
    echoes = [
        (prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt))
        if asked.echo
        else None
        for prompt in asked.prompts
        for _ in range(count)
    ]
    return Job(
        model=model,
        requests=_requests(
            encoded,
            count,
            sampling,
            max_new_tokens,
            model,
            grammar=asked.grammar,
            score_prompt=asked.echo and asked.top_logprobs is not None,
            ends=ends,
        ),
        stop=stop,
        num_prompt_tokens=sum(map(len, encoded)),
        starts_text=False,
        echoes=tuple(echoes),
        grammar_param=asked.grammar_param,
        hidden_tokens=ends,
    )


def _text_tokens(
    asked: TextAsked, prompt: str | Sequence[int], model: ServedModel, max_tokens: int
) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    if asked.suffix is not None:
        gaps = _checked_gap(asked, model)
        return gaps.prompt(model.tokenizer, prompt, asked.suffix, max_tokens=max_tokens)
    return model.tokenizer.encode(
        prompt, parse_special=asked.parses_control_tokens, max_tokens=max_tokens
    )


def _checked_gap(asked: TextAsked, model: ServedModel) -> GapEncoder:
    """Return what fills in text. Raises ``ApiError`` if the model cannot do what is asked."""
    if model.fill_in is None:
        raise invalid(
            "suffix",
            f"{model.model_id} has no tokens for filling in the middle of a text: leave suffix out",
            code="unsupported_parameter",
        )
    if asked.echo:
        raise invalid("echo", "echo does not go with suffix: leave one out")
    if not all(isinstance(prompt, str) for prompt in asked.prompts):
        raise invalid("prompt", "with suffix, prompt should be text, and no tokens")
    return model.fill_in


def _require_logits(model: ServedModel) -> None:
    if not model.has_logits:
        raise invalid("model", f"{model.model_id} has no head: it makes vectors, and no text")


def _requests(
    prompts: Sequence[tuple[int, ...]],
    count: int,
    sampling: SamplingParams,
    max_new_tokens: int | None,
    model: ServedModel,
    *,
    grammar: str | None,
    score_prompt: bool = False,
    ends: frozenset[int] = frozenset(),
) -> tuple[SequenceRequest, ...]:
    """``count`` sequences of each prompt, whose seeds count up from the one asked for."""
    if max_new_tokens is not None:
        max_new_tokens = min(max_new_tokens, model.context_tokens)  # all that could ever be given
    return tuple(
        SequenceRequest(
            prompt_tokens=prompt,
            sampling=replace(sampling, seed=(sampling.seed + number) % _SEEDS),
            max_new_tokens=max_new_tokens,
            stop_tokens=ends.union(model.tokenizer.eos_token_ids),
            score_prompt=score_prompt,
            grammar=grammar,
        )
        for prompt in prompts
        for number in range(count)
    )


def _sampling(asked: Asked, model: ServedModel) -> SamplingParams:
    """What the client asks for, then what the model's makers recommend, then what is neutral."""
    values = merged_sampling(model.sampling_defaults, asked.sampling)
    if values.get("top_k") in (0, -1):  # how other servers write "all"
        values["top_k"] = None
    params = SamplingParams(
        **values,  # type: ignore[arg-type]
        logit_bias=_logit_bias(asked.logit_bias),
        seed=_seed(asked.seed),
        logprobs=asked.top_logprobs is not None,
        top_logprobs=asked.top_logprobs or 0,
    )
    validate_sampling(params, model.vocab_size)
    return params


def _seed(asked: int | None) -> int:
    """OpenAI's seeds have a sign: the negative ones are counted from 2^64 down."""
    if asked is None:
        return secrets.randbits(63)
    if not -(_SEEDS // 2) <= asked < _SEEDS:
        raise invalid("seed", "seed must be from -2^63 to 2^64 - 1")
    return asked % _SEEDS


def _logit_bias(asked: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for name, bias in asked.items():
        if not _TOKEN_ID.fullmatch(name):
            raise invalid("logit_bias", f"logit_bias has the key {name[:20]!r}, not a token id")
        biases[int(name)] = bias
    return tuple(sorted(biases.items()))


def _num_choices(asked: Asked, num_prompts: int, limits: ApiLimits) -> int:
    count = asked.num_choices
    require_number("n", count)
    if count * num_prompts > limits.max_sequences:
        raise invalid(
            "n" if count > 1 else "prompt",
            f"{num_prompts} prompts times n = {count} is more than the"
            f" {limits.max_sequences} choices that a request may have",
        )
    return count


def _stop(asked: Asked) -> tuple[str, ...]:
    stop = tuple(asked.stop)
    if len(stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"stop has {len(stop)} texts, and may have {MAX_STOP_STRINGS}")
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop",
                f"stop has a text of {len(text)} characters, and they may have 1 to"
                f" {MAX_STOP_CHARACTERS}",
            )
    return stop


def checked_prompt(
    tokens: Sequence[int],
    model: ServedModel,
    limits: ApiLimits,
    name: str,
    *,
    num_new_tokens: int = 1,
) -> tuple[int, ...]:
    """Return the tokens of a prompt, if the model can take them. Raises ``PotluckError``."""
    if not tokens:
        raise invalid(name, "the prompt is empty: give at least one token")
    if len(tokens) + num_new_tokens > model.context_tokens:
        raise PromptTooLongError(len(tokens), model.context_tokens)
    if limits.max_prompt_tokens is not None and len(tokens) > limits.max_prompt_tokens:
        raise ApiError(
            400,
            f"the prompt has {len(tokens)} tokens,"
            f" and a prompt may have {limits.max_prompt_tokens} here",
            code="context_length_exceeded",
            param=name,
        )
    outside = next((token for token in tokens if not 0 <= token < model.vocab_size), None)
    if outside is not None:
        raise invalid(
            name, f"token {outside} is not in the model's vocabulary of {model.vocab_size}"
        )
    return tuple(tokens)
