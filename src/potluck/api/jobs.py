"""Convert a request to the sequences that answer it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, invalid
from potluck.api.requests import ChatRequest, CompletionRequest, GenerationRequest
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
"""OpenAI allows 4 stop strings. The automaton that finds them has one state per character."""

_SEEDS = 1 << 64
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The sequences that answer one request, in the order of their ``index``.

    ``num_prompt_tokens`` counts every prompt once, even if several sequences continue it.
    ``starts_text`` is as in ``StreamingDetokenizer``. ``echoes`` are the prompts as texts, if they
    are returned. ``new_parser`` creates the parser of one output, which sees
    ``visible_control_texts``; if it is None, all output is text. The request's grammar comes from
    the field ``grammar_param``. ``hidden_tokens`` produce no text.
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
    """Return the job of a request that only checks that the model is available."""
    return Job(model=model, requests=(), stop=(), num_prompt_tokens=0, starts_text=False, echoes=())


def chat_job(request: ChatRequest, model: ServedModel, limits: ApiLimits) -> Job:
    """Build the job of a chat. Takes long for long chats. Raises ``PotluckError``."""
    _require_logits(model)
    sampling = _sampling(request, model)
    max_new_tokens = request.max_new_tokens
    if max_new_tokens is not None:
        require_number("max_tokens", max_new_tokens)
    count = _num_choices(request, 1, limits)
    stop = _stop(request)
    tool_use = request.tool_use
    encoded = chat_prompt(request, model)
    prompt = checked_prompt(encoded.tokens, model, limits, "messages")
    output_format = model.output_format
    grammar = request.grammar
    new_parser: Callable[[], OutputParser] | None = None
    if output_format is not None:
        grammar = output_format.grammar(
            tool_use if request.grammar is None else _strict(tool_use),
            prompt_end=encoded.turn,
            response=request.grammar,
        )
        new_parser = partial(output_format.parser, tool_use, prompt_end=encoded.turn)
    elif tool_use.tools and tool_use.mode is not ToolMode.NONE:
        raise invalid("tools", "the model's chat template does not support tools")
    return Job(
        model=model,
        requests=_requests(
            [prompt],
            count,
            sampling,
            max_new_tokens,
            model,
            grammar=grammar,
            prediction=_prediction(request, model),
        ),
        stop=stop,
        num_prompt_tokens=len(prompt),
        starts_text=request.ending is ChatEnding.NEW_TURN,
        echoes=(None,) * count,
        new_parser=new_parser,
        visible_control_texts=frozenset() if output_format is None else output_format.control_texts,
        grammar_param="tools" if request.grammar is None else request.grammar_param,
    )


def _strict(tool_use: ToolUse) -> ToolUse:
    """Return the tools; where the answer must match a grammar, calls must match one, too."""
    return replace(tool_use, tools=tuple(replace(tool, is_strict=True) for tool in tool_use.tools))


def chat_prompt(request: ChatRequest, model: ServedModel) -> ChatPrompt:
    """Build the prompt of a chat. Takes long for long chats. Raises ``PotluckError``."""
    if not request.messages:
        raise invalid("messages", "messages is empty: send at least one message")
    tool_use = request.tool_use
    return model.encode_chat(
        request.messages,
        ending=request.ending,
        reasoning_effort=request.reasoning_effort,
        tools=() if tool_use.mode is ToolMode.NONE else tool_use.tools,
        thinks=request.thinks,
        template_variables=request.template_variables,
    )


def text_job(request: CompletionRequest, model: ServedModel, limits: ApiLimits) -> Job:
    """Build the job that continues one or more prompts. Takes long for long ones. Raises
    ``PotluckError``.
    """
    _require_logits(model)
    sampling = _sampling(request, model)
    max_new_tokens = request.max_new_tokens
    if max_new_tokens is not None and not (max_new_tokens == 0 and request.echo):
        require_number("max_tokens", max_new_tokens)
    num_new_tokens = 1 if max_new_tokens is None else min(1, max_new_tokens)
    stop = _stop(request)
    count = _num_choices(request, len(request.prompts), limits)
    ends: frozenset[int] = frozenset()
    if request.suffix is not None:
        ends = _checked_gap(request, model).ends
    encoded = [
        checked_prompt(
            _text_tokens(request, prompt, model, model.context_tokens - num_new_tokens),
            model,
            limits,
            "prompt",
            num_new_tokens=num_new_tokens,
        )
        for prompt in request.prompts
    ]
    echoes = [
        (prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt))
        if request.echo
        else None
        for prompt in request.prompts
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
            grammar=request.grammar,
            score_prompt=request.echo and request.top_logprobs is not None,
            ends=ends,
        ),
        stop=stop,
        num_prompt_tokens=sum(map(len, encoded)),
        starts_text=False,
        echoes=tuple(echoes),
        grammar_param=request.grammar_param,
        hidden_tokens=ends,
    )


def _text_tokens(
    request: CompletionRequest, prompt: str | Sequence[int], model: ServedModel, max_tokens: int
) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    if request.suffix is not None:
        gaps = _checked_gap(request, model)
        return gaps.prompt(model.tokenizer, prompt, request.suffix, max_tokens=max_tokens)
    return model.tokenizer.encode(
        prompt, parse_special=request.parses_control_tokens, max_tokens=max_tokens
    )


def _checked_gap(request: CompletionRequest, model: ServedModel) -> GapEncoder:
    """Return how to fill in text. Raises ``ApiError`` if the model does not support the request."""
    if model.fill_in is None:
        raise invalid(
            "suffix",
            f"{model.model_id} does not support fill-in-the-middle: omit suffix",
            code="unsupported_parameter",
        )
    if request.echo:
        raise invalid("echo", "echo cannot be used with suffix: omit one of them")
    if not all(isinstance(prompt, str) for prompt in request.prompts):
        raise invalid("prompt", "with suffix, prompt must be text, not tokens")
    return model.fill_in


def _require_logits(model: ServedModel) -> None:
    if not model.has_logits:
        raise invalid(
            "model", f"{model.model_id} is an embedding or reranking model and cannot generate text"
        )


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
    prediction: tuple[int, ...] = (),
) -> tuple[SequenceRequest, ...]:
    """Return ``count`` sequences for each prompt, with consecutive seeds from the requested one."""
    if max_new_tokens is not None:
        max_new_tokens = min(max_new_tokens, model.context_tokens)  # as many as the context allows
    return tuple(
        SequenceRequest(
            prompt_tokens=prompt,
            sampling=replace(sampling, seed=(sampling.seed + number) % _SEEDS),
            max_new_tokens=max_new_tokens,
            stop_tokens=ends.union(model.tokenizer.eos_token_ids),
            score_prompt=score_prompt,
            grammar=grammar,
            prediction=prediction,
        )
        for prompt in prompts
        for number in range(count)
    )


def _prediction(request: ChatRequest, model: ServedModel) -> tuple[int, ...]:
    """Return the tokens of the prediction; none for a text that could not be an answer."""
    try:
        tokens = model.tokenizer.encode(request.prediction, max_tokens=model.context_tokens)
    except PromptTooLongError:
        return ()
    is_possible = len(tokens) <= model.context_tokens and max(tokens, default=0) < model.vocab_size
    return tuple(tokens) if is_possible else ()


def _sampling(request: GenerationRequest, model: ServedModel) -> SamplingParams:
    """Combine the client's values, then the model's recommended ones, then neutral ones."""
    values = merged_sampling(model.sampling_defaults, request.sampling)
    if values.get("top_k") in (0, -1):  # other servers write "all" as -1
        values["top_k"] = None
    params = SamplingParams(
        **values,  # type: ignore[arg-type]
        logit_bias=_logit_bias(request.logit_bias),
        seed=_seed(request.seed),
        logprobs=request.top_logprobs is not None,
        top_logprobs=request.top_logprobs or 0,
    )
    validate_sampling(params, model.vocab_size)
    return params


def _seed(seed: int | None) -> int:
    """Convert OpenAI's signed seed: negative ones count down from 2^64."""
    if seed is None:
        return secrets.randbits(63)
    if not -(_SEEDS // 2) <= seed < _SEEDS:
        raise invalid("seed", "seed must be from -2^63 to 2^64 - 1")
    return seed % _SEEDS


def _logit_bias(logit_bias: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for name, bias in logit_bias.items():
        if not _TOKEN_ID.fullmatch(name):
            raise invalid(
                "logit_bias", f"logit_bias has the key {name[:20]!r}, which is not a token id"
            )
        biases[int(name)] = bias
    return tuple(sorted(biases.items()))


def _num_choices(request: GenerationRequest, num_prompts: int, limits: ApiLimits) -> int:
    count = request.num_choices
    require_number("n", count)
    if count * num_prompts > limits.max_sequences:
        raise invalid(
            "n" if count > 1 else "prompt",
            f"{num_prompts} prompts times n = {count} exceeds the limit of "
            f"{limits.max_sequences} choices per request",
        )
    return count


def _stop(request: GenerationRequest) -> tuple[str, ...]:
    stop = tuple(request.stop)
    if len(stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"stop has {len(stop)} texts; the limit is {MAX_STOP_STRINGS}")
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop",
                f"stop has a text of {len(text)} characters; each must have 1 to "
                f"{MAX_STOP_CHARACTERS}",
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
    """Return the tokens of a prompt if the model accepts them. Raises ``PotluckError``."""
    if not tokens:
        raise invalid(name, "the prompt is empty: send at least one token")
    if len(tokens) + num_new_tokens > model.context_tokens:
        raise PromptTooLongError(len(tokens), model.context_tokens)
    if limits.max_prompt_tokens is not None and len(tokens) > limits.max_prompt_tokens:
        raise ApiError(
            400,
            f"the prompt has {len(tokens)} tokens; the limit is {limits.max_prompt_tokens}",
            code="context_length_exceeded",
            param=name,
        )
    require_known_tokens(tokens, model, name)
    return tuple(tokens)


def require_known_tokens(tokens: Sequence[int], model: ServedModel, name: str) -> None:
    """Raise ``ApiError`` for a token that the model's vocabulary does not have."""
    outside = next((token for token in tokens if not 0 <= token < model.vocab_size), None)
    if outside is not None:
        raise invalid(
            name, f"token {outside} is not in the model's vocabulary of {model.vocab_size}"
        )
