"""The model in the package writes what transformers writes with it, token by token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import potluck
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.types.text import ChatMessage

NUM_NEW = 96
PROMPTS = (
    "Once upon a time, there was a little fox who",
    "In the village lived",
    "One snowy afternoon, a mouse found a key. The mouse",
)
CHATS = (
    (ChatMessage(role="user", content="Tell me a story about a fox."),),
    (
        ChatMessage(role="user", content="Who are you?"),
        ChatMessage(role="assistant", content="I am a very small model."),
        ChatMessage(role="user", content="Tell a story about a little kitten called Thistle."),
    ),
)


@pytest.fixture(scope="module")
def model() -> Iterator[potluck.Model]:
    with potluck.Model.open("demo", stages=3) as opened:
        yield opened


@pytest.fixture(scope="module")
def reference() -> Any:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(DEMO_DIRECTORY, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DEMO_DIRECTORY)


def expected_tokens(reference: Any, prompt: list[int]) -> list[int]:
    """Greedy, to the end of the text or ``NUM_NEW`` tokens."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        output = reference.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            max_new_tokens=NUM_NEW,
        )
    tokens: list[int] = output[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("prompt", PROMPTS)
def test_text(model: potluck.Model, reference: Any, tokenizer: Any, prompt: str) -> None:
    prompt_tokens = tokenizer(prompt)["input_ids"]
    expected = expected_tokens(reference, prompt_tokens)
    assert len(expected) >= 64
    result = model.generate(
        prompt, max_tokens=NUM_NEW, temperature=0.0, repetition_penalty=1.0
    ).result()
    assert list(result.prompt_tokens) == prompt_tokens
    assert [piece.token for piece in result.pieces] == expected
    whole = tokenizer.decode([*prompt_tokens, *expected], skip_special_tokens=True)
    assert prompt + result.text == whole


def test_scores(model: potluck.Model, reference: Any, tokenizer: Any) -> None:
    """Each token's log-probability, and the perplexity of a text.

    The model's weights are bf16, and where a CPU multiplies in bf16 so are the activations: 8 bits.
    """
    text = " ".join(PROMPTS)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        logprobs = torch.log_softmax(reference(ids).logits[0, :-1], dim=-1)
        loss = reference(ids, labels=ids).loss
    scores = model.score(text, top=3)
    assert [each.token for each in scores.tokens] == ids[0].tolist()
    expected = logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert [each.logprob for each in scores.tokens[1:]] == pytest.approx(expected, abs=0.05)
    assert scores.perplexity == pytest.approx(float(loss.exp()), rel=1e-3)
    for each, row in zip(scores.tokens[1:], logprobs, strict=True):
        best = row.topk(3)
        assert [other.logprob for other in each.top] == pytest.approx(
            best.values.tolist(), abs=0.05
        )


@pytest.mark.parametrize("messages", CHATS, ids=["one turn", "three turns"])
def test_chat(
    model: potluck.Model, reference: Any, tokenizer: Any, messages: tuple[ChatMessage, ...]
) -> None:
    dicts = [{"role": message.role, "content": message.content} for message in messages]
    prompt_tokens = tokenizer.apply_chat_template(
        dicts, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    expected = expected_tokens(reference, prompt_tokens)
    result = model.chat(
        messages, max_tokens=NUM_NEW, temperature=0.0, repetition_penalty=1.0
    ).result()
    assert list(result.prompt_tokens) == prompt_tokens
    assert [piece.token for piece in result.pieces] == expected
    assert result.text == tokenizer.decode(expected, skip_special_tokens=True)
