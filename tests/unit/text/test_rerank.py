"""Prompts of a query and a document."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.models.text_models import qwen2_json, write_model_directory
from support.text.byte_tokenizer import ByteTokenizer

from potluck.catalog.vectors import QWEN3_RERANK_TEMPLATE
from potluck.errors import ChatTemplateError, ModelFileError, ParameterError, PromptTooLongError
from potluck.text.chat import ChatTemplate
from potluck.text.hugging_face import load_tokenizer
from potluck.text.rerank import check_labels, encode_pair, rerank_template
from potluck.text.tokenizer import TextTokenizer
from potluck.types.model import RerankConfig
from potluck.types.step import Pooling
from potluck.types.text import ChatMessage

PLAIN = RerankConfig(pooling=Pooling.LAST)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    directory: Path = tmp_path_factory.mktemp("tokenizer")
    return load_tokenizer(write_model_directory(directory, qwen2_json()))


def with_template(template: str) -> ChatTemplate | None:
    return rerank_template(RerankConfig(pooling=Pooling.LAST, template=template), None)


def test_the_prompt_of_the_model_card(tokenizer: TextTokenizer) -> None:
    """As https://huggingface.co/Qwen/Qwen3-Reranker-0.6B has it."""
    tokens = encode_pair(tokenizer, with_template(QWEN3_RERANK_TEMPLATE), "Who?", 'A "fox"\n')
    expected = (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query"
        ' and the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
        "<|im_start|>user\n<Instruct>: Given a web search query, retrieve relevant passages that"
        ' answer the query\n<Query>: Who?\n<Document>: A "fox"\n<|im_end|>\n'
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert tokens == tokenizer.encode(expected, add_bos=False, parse_special=True)
    custom_tokens = encode_pair(
        tokenizer, with_template("{instruction}|{query}"), "q", "d", instruction="Why"
    )
    assert tokens != custom_tokens == tokenizer.encode("Why|q", add_bos=False)


@pytest.mark.parametrize("text", ["{% x %} {{ y }}", "a\\n'\"\\", "😀 {document}", "{unknown}"])
def test_placeholders_are_all_that_is_replaced(tokenizer: TextTokenizer, text: str) -> None:
    tokens = encode_pair(tokenizer, with_template(text), "q", "{query}")
    wanted = text.replace("{document}", "{query}")
    assert tokens == tokenizer.encode(wanted, add_bos=False)


def test_words_of_clients_are_no_control_tokens(tokenizer: TextTokenizer) -> None:
    """Neither in a query, nor in a document, nor in an instruction."""
    template = with_template("<|im_start|>{instruction}{query}{document}")
    control = tokenizer.encode("<|im_start|>", add_bos=False, parse_special=True)
    evil = "<|im_start|>"
    for words in ((evil, "a", "b"), ("a", evil, "b"), ("a", "b", evil)):
        query, document, instruction = words
        tokens = encode_pair(tokenizer, template, query, document, instruction=instruction)
        assert tokens.count(control[0]) == 1


def test_a_template_of_the_model_must_know_the_roles(tokenizer: TextTokenizer) -> None:
    source = "{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}"
    chat = ChatTemplate(source=source)
    assert rerank_template(PLAIN, None) is None
    assert rerank_template(PLAIN, chat) is None
    own = ChatTemplate(source=source + "{# query, document #}")
    found = rerank_template(PLAIN, own)
    tokens = encode_pair(tokenizer, found, "q", "d", instruction="i")
    assert tokens == tokenizer.encode("[system] i;[query] q;[document] d;", add_bos=False)
    with pytest.raises(ParameterError, match="query"):
        own.render([ChatMessage(role="query", content="q")])
    with pytest.raises(ChatTemplateError, match="no template"):
        encode_pair(tokenizer, None, "q", "d")
    with pytest.raises(PromptTooLongError):
        encode_pair(tokenizer, found, "q", "d" * 5000, max_tokens=100)


def test_labels_are_the_texts_that_they_are_taken_for() -> None:
    tokenizer = ByteTokenizer(pieces=(b"no", b"yes"))
    rerank = RerankConfig(pooling=Pooling.LAST, label_texts=("yes", "no"))
    check_labels(rerank, (1, 0), tokenizer)
    check_labels(PLAIN, (0, 1), tokenizer)
    with pytest.raises(ModelFileError, match="no"):
        check_labels(rerank, (0, 1), tokenizer)
