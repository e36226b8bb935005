"""From a checked body to the sequences that answer it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.api.config import ApiLimits
from potluck.api.errors import ApiError, invalid
from potluck.api.schema import ChatBody, CommonBody, CompletionBody, ContentPart, Message
from potluck.errors import PromptTooLongError
from potluck.text.chat import chat_ending
from potluck.types.gateway import ServedModel
from potluck.types.ranges import require_number
from potluck.types.sampling import merged_sampling, validate_sampling
from potluck.types.sequence import SequenceRequest
from potluck.types.step import SamplingParams
from potluck.types.text import ChatEnding, ChatMessage

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's ``max_tokens`` of completions. A chat goes on to the end of the context."""

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
"""OpenAI takes 4 strings. The automaton that finds them has a state per character."""

MAX_NAME_CHARACTERS = 64
"""Of a message's ``name``, as in OpenAI's API."""

_SEEDS = 1 << 64
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The sequences that answer one request, in the order of their ``index``.

    ``num_prompt_tokens`` counts every prompt once, however many sequences continue it.
    ``starts_text`` is as in ``StreamingDetokenizer``. ``echoes`` are the prompts as texts, where
    they are given back.
    """

    model: ServedModel
    requests: tuple[SequenceRequest, ...]
    stop: tuple[str, ...]
    num_prompt_tokens: int
    starts_text: bool
    echoes: tuple[str | None, ...]


def chat_job(body: ChatBody, model: ServedModel, limits: ApiLimits) -> Job:
    """What answers a chat. Takes a while for long ones. Raises ``PotluckError``."""
    num_top = body.top_logprobs or 0
    sampling = _sampling(body, model, logprobs=bool(body.logprobs), top_logprobs=num_top)
    max_new_tokens = _max_new_tokens(body, body.max_completion_tokens)
    count = _num_choices(body, 1, limits)
    stop = _stop(body)
    messages = [_message(message, index) for index, message in enumerate(body.messages)]
    if not messages:
        raise invalid("messages", "messages is empty: say something")
    ending = chat_ending(
        messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    encoded = model.encode_chat(messages, ending=ending, reasoning_effort=body.reasoning_effort)
    prompt = _checked(encoded, model, limits, "messages")
    return Job(
        model=model,
        requests=_requests([prompt], count, sampling, max_new_tokens, model),
        stop=stop,
        num_prompt_tokens=len(prompt),
        starts_text=ending is ChatEnding.NEW_TURN,
        echoes=(None,) * count,
    )


def completion_job(body: CompletionBody, model: ServedModel, limits: ApiLimits) -> Job:
    """What continues a prompt, or several. Takes a while for long ones. Raises ``PotluckError``."""
    num_top = body.logprobs
    if num_top is not None:
        require_number("logprobs", num_top)
    sampling = _sampling(body, model, logprobs=num_top is not None, top_logprobs=num_top or 0)
    asked = _max_new_tokens(body, None, least=0 if body.echo else 1)
    max_new_tokens = DEFAULT_COMPLETION_TOKENS if asked is None else asked
    stop = _stop(body)
    prompts = _prompts(body.prompt)
    count = _num_choices(body, len(prompts), limits)
    encoded = [
        _checked(
            model.tokenizer.encode(prompt, max_tokens=model.context_tokens - min(1, max_new_tokens))
            if isinstance(prompt, str)
            else prompt,
            model,
            limits,
            "prompt",
            num_new_tokens=min(1, max_new_tokens),
        )
        for prompt in prompts
    ]
    echoes = [
        (prompt if isinstance(prompt, str) else model.tokenizer.decode(prompt))
        if body.echo
        else None
        for prompt in prompts
        for _ in range(count)
    ]
    return Job(
        model=model,
        requests=_requests(
            encoded, count, sampling, max_new_tokens, model, score_prompt=_is_scored(body)
        ),
        stop=stop,
        num_prompt_tokens=sum(map(len, encoded)),
        starts_text=False,
        echoes=tuple(echoes),
    )


def _is_scored(body: CompletionBody) -> bool:
    return bool(body.echo) and body.logprobs is not None


def _requests(
    prompts: Sequence[tuple[int, ...]],
    count: int,
    sampling: SamplingParams,
    max_new_tokens: int | None,
    model: ServedModel,
    *,
    score_prompt: bool = False,
) -> tuple[SequenceRequest, ...]:
    """``count`` sequences of each prompt, whose seeds count up from the one asked for."""
    if max_new_tokens is not None:
        max_new_tokens = min(max_new_tokens, model.context_tokens)  # all that could ever be given
    return tuple(
        SequenceRequest(
            prompt_tokens=prompt,
            sampling=replace(sampling, seed=(sampling.seed + number) % _SEEDS),
            max_new_tokens=max_new_tokens,
            stop_tokens=frozenset(model.tokenizer.eos_token_ids),
            score_prompt=score_prompt,
        )
        for prompt in prompts
        for number in range(count)
    )


def _sampling(
    body: CommonBody, model: ServedModel, *, logprobs: bool, top_logprobs: int
) -> SamplingParams:
    """What the client asks for, then what the model's makers recommend, then what is neutral."""
    asked = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    values = merged_sampling(model.sampling_defaults, given)
    if values.get("top_k") in (0, -1):  # how other servers write "all"
        values["top_k"] = None
    params = SamplingParams(
        **values,  # type: ignore[arg-type]
        logit_bias=_logit_bias(body.logit_bias or {}),
        seed=_seed(body.seed),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
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


def _max_new_tokens(
    body: CommonBody, max_completion_tokens: int | None, *, least: int = 1
) -> int | None:
    asked = {
        "max_tokens": body.max_tokens,
        "max_completion_tokens": max_completion_tokens,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        if value == 0 == least:
            continue  # the prompt alone is asked for
        require_number(name, value)
    if len(set(given.values())) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ: give one")
    return next(iter(given.values()), None)


def _num_choices(body: CommonBody, num_prompts: int, limits: ApiLimits) -> int:
    count = 1 if body.n is None else body.n
    require_number("n", count)
    if count * num_prompts > limits.max_sequences:
        raise invalid(
            "n" if count > 1 else "prompt",
            f"{num_prompts} prompts times n = {count} is more than the"
            f" {limits.max_sequences} choices that a request may have",
        )
    return count


def _stop(body: CommonBody) -> tuple[str, ...]:
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if len(stop) > MAX_STOP_STRINGS:
        raise invalid("stop", f"stop has {len(stop)} texts, and may have {MAX_STOP_STRINGS}")
    for text in stop:
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop",
                f"a stop text has {len(text)} characters, and may have 1 to {MAX_STOP_CHARACTERS}",
            )
    return stop


def _message(message: Message, index: int) -> ChatMessage:
    if message.role in ("tool", "function"):
        raise invalid(
            f"messages[{index}].role",
            f"messages with the role {message.role} are not supported: there are no tools",
            code="unsupported_value",
        )
    if message.role not in ("system", "developer", "user", "assistant"):
        raise invalid(
            f"messages[{index}].role",
            f"there is no role {message.role[:20]!r}: use system, developer, user or assistant",
        )
    # OpenAI's newer name for the system's words, which few chat templates know.
    role = "system" if message.role == "developer" else message.role
    if message.name is not None and len(message.name) > MAX_NAME_CHARACTERS:
        raise invalid(
            f"messages[{index}].name",
            f"messages[{index}].name has {len(message.name)} characters,"
            f" and may have {MAX_NAME_CHARACTERS}",
        )
    return ChatMessage(role=role, content=_content(message, index), name=message.name)


def _content(message: Message, index: int) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        return "".join(
            _text_of(part, f"messages[{index}].content[{number}]")
            for number, part in enumerate(message.content)
        )
    if message.role != "assistant":
        raise invalid(
            f"messages[{index}].content",
            f"messages[{index}].content is missing",
            code="missing_required_parameter",
        )
    return ""  # OpenAI's own answers have none where the assistant called a tool or refused


def _text_of(part: ContentPart, where: str) -> str:
    if part.type != "text":
        raise invalid(
            f"{where}.type",
            f"{where} is of the type {part.type[:20]!r}: only text is supported",
            code="unsupported_value",
        )
    if part.text is None:
        raise invalid(f"{where}.text", f"{where}.text is missing")
    for name in part.model_extra or {}:
        raise invalid(
            f"{where}.{name[:20]}", f"a part of text has no {name[:20]!r}", code="unknown_parameter"
        )
    return part.text


def _prompts(asked: object) -> list[str | list[int]]:
    """The prompts of all four forms: text, texts, tokens, lists of tokens."""
    if isinstance(asked, str):
        return [asked]
    if isinstance(asked, list) and asked:
        if all(isinstance(each, str) for each in asked):
            return list(asked)
        if _are_tokens(asked):
            return [asked]
        if all(isinstance(each, list) and _are_tokens(each) for each in asked):
            return list(asked)
    raise invalid(
        "prompt", "prompt must be text, a list of texts, a list of tokens, or a list of those"
    )


def _are_tokens(values: list[object]) -> bool:
    return all(type(value) is int for value in values)


def _checked(
    tokens: Sequence[int],
    model: ServedModel,
    limits: ApiLimits,
    name: str,
    *,
    num_new_tokens: int = 1,
) -> tuple[int, ...]:
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
