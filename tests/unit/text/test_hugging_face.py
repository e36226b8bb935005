"""Tokenizers and templates from Hugging Face directories."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.models.text_models import (
    HARD_TEXTS,
    LLAMA3_SPECIAL,
    QWEN2_SPECIAL,
    llama2_json,
    llama3_json,
    qwen2_json,
    unigram_json,
    write_model_directory,
)
from tokenizers import Tokenizer

from potluck.errors import ModelFileError, ParameterError, UnsupportedModelError
from potluck.text.hugging_face import (
    TOOL_TEMPLATE_FILE,
    load_chat_template,
    load_token_list,
    load_tokenizer,
)
from potluck.text.tokenizer import TextTokenizer
from potluck.types.text import Tool

STYLES: dict[str, Callable[[], str]] = {
    "llama3": llama3_json,
    "qwen2": qwen2_json,
    "llama2-legacy": lambda: llama2_json(legacy=True),
    "llama2-first": lambda: llama2_json(scheme="first"),
    "llama2-always": lambda: llama2_json(scheme="always"),
    "llama2-never": lambda: llama2_json(scheme="never"),
}
ADDED_TEXTS = (
    "<s>hi</s> there",
    " <s> x",
    "<|user|>  \n hello <mask> x",
    "a <word> b<word>",
    "bound abound bound.",
    "x<|im_start|>user\nhi<|im_end|>",
    "<|begin_of_text|>  a<|eot_id|> b<|eot_id|>",
    "<think> a </think>",
)


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_ids_and_texts_are_those_of_the_library(style: str, tmp_path: Path) -> None:
    library = Tokenizer.from_str(STYLES[style]())
    tokenizer = load_tokenizer(write_model_directory(tmp_path, STYLES[style]()))
    assert tokenizer.vocab_size == library.get_vocab_size()
    for text in (*HARD_TEXTS, *ADDED_TEXTS):
        for parse_special in (True, False):
            library.encode_special_tokens = not parse_special
            for add_bos in (True, False):
                expected = library.encode(text, add_special_tokens=add_bos).ids
                got = tokenizer.encode(text, add_bos=add_bos, parse_special=parse_special)
                assert got == expected, (text, parse_special, add_bos)
                assert tokenizer.decode(got) == library.decode(expected)


def test_characters_that_a_unigram_model_does_not_know(tmp_path: Path) -> None:
    library = Tokenizer.from_str(unigram_json())
    tokenizer = load_tokenizer(write_model_directory(tmp_path, unigram_json()))
    for text in ("the 中文 fox", "Ж", "The quick brown fox"):
        expected = library.encode(text).ids
        assert (library.token_to_id("<unk>") in expected) == (not text.isascii())
        assert tokenizer.encode(text) == expected


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_control_tokens_come_from_text_on_request_only(style: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model_directory(tmp_path, STYLES[style]()))
    control = set(tokenizer.encode("".join(tokenizer.special_tokens), parse_special=True))
    assert len(control) >= len(tokenizer.special_tokens)
    for text in tokenizer.special_tokens:
        [token] = tokenizer.encode(text, add_bos=False, parse_special=True)
        assert tokenizer.token_bytes(token) == b""
        assert tokenizer.decode(tokenizer.encode(f"a {text} b")) == f"a {text} b"
        assert tokenizer.decode(tokenizer.encode(f"a{text}b", parse_special=True)) in (
            "ab",
            "a b",
        )


def test_bytes_of_tokens(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model_directory(tmp_path, llama3_json()))
    text = "Größe 从前 😀\x00\r\n   "
    tokens = tokenizer.encode(text, add_bos=False)
    assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
    assert tokenizer.token_bytes(-1) == b""
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""
    assert tokenizer.token_bytes(2**70) == b""


def test_incomplete_characters_become_replacement_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model_directory(tmp_path, llama3_json()))
    lone = [t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"\xe4"]
    assert tokenizer.decode([*lone, *tokenizer.encode("a", add_bos=False)]) == "\ufffda"


def test_ends_are_collected_from_all_files(tmp_path: Path) -> None:
    directory = write_model_directory(
        tmp_path,
        llama3_json(),
        config={"bos_token": {"content": LLAMA3_SPECIAL[0]}, "eos_token": LLAMA3_SPECIAL[4]},
        files={
            "generation_config.json": {"eos_token_id": [676, 679]},
            "config.json": {"eos_token_id": 677},
        },
    )
    tokenizer = load_tokenizer(directory)
    library = Tokenizer.from_str(llama3_json())
    inner = {"eos_token_id": 676, "text_config": {"eos_token_id": [678]}}
    (directory / "config.json").write_text(json.dumps(inner))
    assert load_tokenizer(directory).eos_token_ids == (676, 679, 678)
    assert tokenizer.encode("") == [library.token_to_id(LLAMA3_SPECIAL[0])]
    assert tokenizer.eos_token_ids == (676, 679, 677)
    assert library.token_to_id(LLAMA3_SPECIAL[4]) == 679


def test_special_tokens_map_names_what_the_configuration_does_not(tmp_path: Path) -> None:
    directory = write_model_directory(
        tmp_path, qwen2_json(), files={"special_tokens_map.json": {"eos_token": "<|im_end|>"}}
    )
    library = Tokenizer.from_str(qwen2_json())
    assert load_tokenizer(directory).eos_token_ids == (library.token_to_id("<|im_end|>"),)


@pytest.mark.parametrize(("adds_bos", "expected"), [(True, [675]), (False, []), (None, [675])])
def test_the_configuration_decides_about_bos(
    adds_bos: bool | None, expected: list[int], tmp_path: Path
) -> None:
    config: dict[str, object] = {"bos_token": LLAMA3_SPECIAL[0]}
    if adds_bos is not None:
        config["add_bos_token"] = adds_bos
    tokenizer = load_tokenizer(write_model_directory(tmp_path, llama3_json(), config=config))
    assert tokenizer.encode("", add_bos=True) == expected


def with_document(style: str, **changes: object) -> str:
    document = json.loads(STYLES[style]())
    document.update(changes)
    return json.dumps(document)


def added(token: int) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": token, "content": "<x>", **flags}


def test_what_counts_as_control(tmp_path: Path) -> None:
    document = json.loads(qwen2_json())
    for entry in document["added_tokens"]:
        entry["special"] = False
    config: dict[str, object] = {
        "eos_token": "<tool_call>",
        "additional_special_tokens": ["</think>"],
    }
    tokenizer = load_tokenizer(write_model_directory(tmp_path, json.dumps(document), config=config))
    assert set(tokenizer.special_tokens) == {*QWEN2_SPECIAL, "<tool_call>", "</think>"}
    assert tokenizer.decode(tokenizer.encode("<think>x<|im_end|>", parse_special=True)) == (
        "<think>x"
    )


def test_a_control_token_that_merges_can_reach_is_spelled_out(tmp_path: Path) -> None:
    document = json.loads(llama2_json(legacy=True))
    vocabulary: dict[str, int] = document["model"]["vocab"]
    for number, piece in enumerate(("<", "s", ">", "<s")):
        vocabulary.setdefault(piece, 1000 + number)
    document["model"]["merges"] += [["<", "s"], ["<s", ">"]]
    tokenizer = load_tokenizer(write_model_directory(tmp_path, json.dumps(document)))
    tokens = tokenizer.encode("x<s>y")
    assert tokens.count(1) == 1
    assert tokens[0] == 1
    assert tokenizer.decode(tokens) == "x<s>y"


def test_what_the_vocabulary_lacks_is_the_unknown_token(tmp_path: Path) -> None:
    document = json.loads(llama2_json(legacy=True))
    document["model"]["byte_fallback"] = False
    library = Tokenizer.from_str(json.dumps(document))
    tokenizer = load_tokenizer(write_model_directory(tmp_path, json.dumps(document)))
    tokens = tokenizer.encode("the ☃ dog")
    assert tokens == library.encode("the ☃ dog").ids
    assert tokens.count(0) == 1
    assert tokenizer.decode(tokens) == "the  dog"


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+c"},
                           "behavior": "Isolated", "invert": False}},
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<absent>"}},
    ],
)  # fmt: skip
def test_a_text_on_which_the_library_fails_is_refused(
    changes: dict[str, object], tmp_path: Path
) -> None:
    directory = write_model_directory(tmp_path, with_document("llama3", **changes))
    tokenizer = load_tokenizer(directory)
    with pytest.raises(ParameterError, match="cannot encode the text"):
        tokenizer.encode("a" * 60 + "b")


QWEN_3_5_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""As ``Qwen3_5Tokenizer`` of transformers has it."""


@pytest.mark.parametrize(
    ("name", "pattern"), [("Qwen2Tokenizer", None), ("Qwen3_5Tokenizer", QWEN_3_5_WORDS)]
)
def test_vocabulary_and_merges_without_tokenizer_json(
    name: str, pattern: str | None, tmp_path: Path
) -> None:
    document = json.loads(qwen2_json())
    if pattern is not None:
        document["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": pattern}
    model = document["model"]
    # A letter and the first byte of a mark, which belong together only where marks are of words.
    model["vocab"]["eÌ"] = model["vocab"].pop("".join(model["merges"].pop()))
    model["merges"].insert(0, ["e", "Ì"])
    files: dict[str, Any] = {
        "vocab.json": model["vocab"],
        "merges.txt": "#version: 0.2\n" + "\n".join(" ".join(m) for m in model["merges"]) + "\n",
    }
    stated = {str(entry["id"]): entry for entry in document["added_tokens"]}
    config: dict[str, object] = {
        "tokenizer_class": name,
        "eos_token": "<|im_end|>",
        "added_tokens_decoder": stated,
    }
    directory = write_model_directory(tmp_path, "", config=config, files=files)
    (directory / "tokenizer.json").unlink()
    tokenizer = load_tokenizer(directory)
    library = Tokenizer.from_str(json.dumps(document))
    for text in (*HARD_TEXTS, *ADDED_TEXTS, "the\u0336re"):
        assert tokenizer.encode(text, parse_special=True) == library.encode(text).ids


def test_what_a_directory_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as empty:
        load_tokenizer(tmp_path)
    assert empty.value.missing == ("tokenizer.json",)
    (tmp_path / "tokenizer.model").write_bytes(b"\x00")
    with pytest.raises(ModelFileError, match="SentencePiece"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(UnsupportedModelError, match="for the unsupported class None"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[1]"),
        ("tokenizer.json", with_document("llama3", model={"type": "BPE"})),
        ("tokenizer.json", with_document("llama3", added_tokens=[{"id": 5}])),
        ("tokenizer_config.json", '{"chat_template": '),
        ("generation_config.json", '{"eos_token_id": "</s>"}'),
        ("generation_config.json", '{"eos_token_id": 1099511627776}'),
        ("generation_config.json", '{"eos_token_id": [1, -2]}'),
        ("generation_config.json", '{"eos_token_id": true}'),
        ("config.json", '{"eos_token_id": 16777216}'),
        ("config.json", '{"text_config": {"eos_token_id": [4294967296]}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"-1": {"content": "x"}}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1099511627776": {"content": "x"}}}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"9": {"content": "\\ud800"}}}'),
        ("tokenizer.json", with_document("llama3", added_tokens=[added(-1)])),
        ("tokenizer.json", with_document("llama3", added_tokens=[added(2**40)])),
        ("config.json", "\udcff"),
        ("tokenizer_config.json", "[" * 10_000),
        ("tokenizer.json", llama3_json()[:-1] + ', "unknown": ' + "[" * 10_000),
    ],
)
def test_damaged_files(name: str, content: str, tmp_path: Path) -> None:
    directory = write_model_directory(tmp_path, llama3_json())
    (directory / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    for load in (load_tokenizer, load_token_list):
        with pytest.raises(ModelFileError) as error:
            load(directory)
        assert "\n" not in error.value.message
        assert error.value.hint


@pytest.mark.parametrize("stated", [-1, [-1], None, []])
def test_an_end_of_minus_one_is_none(stated: object, tmp_path: Path) -> None:
    files: dict[str, object] = {
        "generation_config.json": {"eos_token_id": stated},
        "config.json": {"eos_token_id": stated},
    }
    directory = write_model_directory(
        tmp_path, llama3_json(), config={"eos_token": LLAMA3_SPECIAL[4]}, files=files
    )
    assert load_tokenizer(directory).eos_token_ids == (679,)
    assert load_token_list(directory).end_tokens == (679,)


def test_a_file_on_which_the_library_panics_is_damaged(tmp_path: Path) -> None:
    document = with_document(
        "llama3", normalizer={"type": "Precompiled", "precompiled_charsmap": ""}
    )
    with pytest.raises(ModelFileError, match="not a valid tokenizer file"):
        load_tokenizer(write_model_directory(tmp_path, document))


def test_an_unknown_decoder_is_refused(tmp_path: Path) -> None:
    document = with_document(
        "llama3", decoder={"type": "WordPiece", "prefix": "##", "cleanup": True}
    )
    with pytest.raises(UnsupportedModelError, match="WordPiece"):
        load_tokenizer(write_model_directory(tmp_path, document))


def test_threads_do_not_disturb_one_another(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_model_directory(tmp_path, llama3_json()))
    texts = [f"{text}<|eot_id|>" for text in HARD_TEXTS] * 5

    def encode(task: tuple[int, str]) -> list[int]:
        return tokenizer.encode(task[1], parse_special=task[0] % 2 == 0)

    tasks = list(enumerate(texts))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(encode, tasks)) == [encode(task) for task in tasks]


def test_a_lone_surrogate_is_refused(tmp_path: Path) -> None:
    tokenizer: TextTokenizer = load_tokenizer(write_model_directory(tmp_path, llama3_json()))
    with pytest.raises(ParameterError, match="character 2"):
        tokenizer.encode("ab\ud800")


@pytest.mark.parametrize(
    ("files", "config", "expected"),
    [
        ({}, {}, None),
        ({}, {"chat_template": "C"}, "C"),
        (
            {},
            {
                "chat_template": [
                    {"name": "tool_use", "template": "T"},
                    {"name": "default", "template": "D"},
                ]
            },
            "D",
        ),
        ({}, {"chat_template": [{"name": "tool_use", "template": "T"}]}, None),
        ({"chat_template.json": {"chat_template": "J"}}, {"chat_template": "C"}, "J"),
        ({"processor_config.json": {"chat_template": "P"}}, {"chat_template": "C"}, "P"),
        ({"chat_template.jinja": "F", "chat_template.json": {"chat_template": "J"}}, {}, "F"),
    ],
)
def test_where_chat_templates_are(
    files: dict[str, object], config: dict[str, object], expected: str | None, tmp_path: Path
) -> None:
    config = {**config, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    template = load_chat_template(
        write_model_directory(tmp_path, llama3_json(), config=config, files=files)
    )
    if expected is None:
        assert template is None
    else:
        assert template is not None
        assert template.source == expected
        assert template.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("files", "template", "expected"),
    [
        ({}, "C", None),
        ({}, {"default": "D", "tool_use": "T"}, "T"),
        ({}, [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}], "T"),
        ({TOOL_TEMPLATE_FILE: "A"}, {"default": "D", "tool_use": "T"}, "A"),
        ({TOOL_TEMPLATE_FILE: "A", "chat_template.jinja": "F"}, None, "A"),
    ],
)
def test_a_template_for_tools(
    files: dict[str, object], template: object, expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / TOOL_TEMPLATE_FILE).parent.mkdir()
    found = load_chat_template(
        write_model_directory(
            tmp_path, llama3_json(), config={"chat_template": template}, files=files
        )
    )
    assert found is not None
    assert found.tool_source == expected
    tool = Tool(name="clock")
    assert found.source_for(()) == found.source
    assert found.source_for((tool,)) == (expected or found.source)
    assert found.render([], tools=[tool]) == (expected or found.source)


def test_a_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    directory = write_model_directory(tmp_path, llama3_json(), config={"chat_template": 7})
    with pytest.raises(ModelFileError, match="not a string"):
        load_chat_template(directory)


def test_a_template_whose_name_is_no_text_has_no_name(tmp_path: Path) -> None:
    templates = [{"name": ["default"], "template": "A"}, {"name": "default", "template": "B"}]
    directory = write_model_directory(tmp_path, llama3_json(), config={"chat_template": templates})
    template = load_chat_template(directory)
    assert template is not None
    assert template.source == "B"


def with_processor(style: str, single: list[dict[str, object]], tokens: dict[str, int]) -> str:
    document = json.loads(STYLES[style]())
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single,
        "special_tokens": {
            name: {"id": name, "ids": [token], "tokens": [name]} for name, token in tokens.items()
        },
    }
    return json.dumps(document)


def test_closing_tokens_are_those_that_the_library_adds(tmp_path: Path) -> None:
    """As Qwen3-Embedding's tokenizer.json has them."""
    text: dict[str, object] = {"Sequence": {"id": "A", "type_id": 0}}
    end: dict[str, object] = {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}
    first = Tokenizer.from_str(STYLES["qwen2"]()).token_to_id("<|im_end|>")
    assert first is not None
    for number, single in enumerate(([text], [text, end], [end, text, end, end])):
        described = with_processor("qwen2", single, {"<|im_end|>": first})
        library = Tokenizer.from_str(described)
        tokenizer = load_tokenizer(write_model_directory(tmp_path / str(number), described))
        assert [*tokenizer.encode("A cat."), *tokenizer.closing_tokens] == library.encode(
            "A cat."
        ).ids


def test_closing_tokens_by_the_configuration(tmp_path: Path) -> None:
    config: dict[str, object] = {"eos_token": "<|im_end|>", "add_eos_token": True}
    directory = write_model_directory(tmp_path, STYLES["qwen2"](), config=config)
    tokenizer = load_tokenizer(directory)
    assert tokenizer.closing_tokens == tokenizer.eos_token_ids[-1:] != ()
