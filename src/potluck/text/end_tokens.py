"""The tokens that end generation for a GGUF file.

Few files name all of them. As in llama.cpp (``llama_vocab::impl::load`` in its
``src/llama-vocab.cpp``, ``special_eog_ids``), vocabulary entries with certain texts are added to
the ids that the metadata names, whatever type the file gives them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

METADATA_KEYS = (
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
)
"""Keys under ``tokenizer.ggml.``: the ends of a text, a turn and a message, and the tokens that
follow a fill-in-the-middle completion."""

_TEXTS = frozenset(
    {
        "<|eot_id|>",  # Llama 3
        "<|eom_id|>",
        "<|im_end|>",  # ChatML: Qwen, SmolLM
        "<|end|>",  # Phi 3
        "<|return|>",  # gpt-oss
        "<|call|>",
        "<|flush|>",  # Solar Open
        "<|calls|>",
        "<end_of_turn>",  # Gemma
        "<|endoftext|>",  # GPT-2, Qwen
        "<|end_of_text|>",  # Llama 3, Granite
        "</s>",  # Llama 2, Mistral
        "<EOT>",  # CodeLlama
        "_<EOT>",
        "[EOT]",  # Kimi K2
        "[EOS]",
        "<end_of_utterance>",  # SmolDocling
        "<eos>",  # Gemma 4
        "<turn|>",
        "<|tool_response>",
        "<\uff5cend\u2581of\u2581sentence\uff5c>",  # DeepSeek
        "[e~[",  # MiniMax
    }
)

_TEXTS_WITHOUT_KEY = {
    "fim_pad_token_id": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep_token_id": frozenset(
        {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}
    ),
    "fim_sep_token_id": frozenset({"<|file_sep|>"}),
}
"""Texts that are used only if the file does not have the key."""

_EXCEPTIONS: tuple[tuple[str, frozenset[str]], ...] = (
    ("<|end|>", frozenset({"<|return|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|return|>", "<|calls|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|call|>"})),
    ("<|end|>", frozenset({"<|flush|>", "<|calls|>"})),
    ("</s>", frozenset({"<|tool_response>"})),
    ("</s>", frozenset({"<eos>", "<end_of_turn>"})),
)
"""Texts that do not end a text in vocabularies with all of certain other end texts: gpt-oss and
Solar Open end every message of an answer with ``<|end|>``, and Gemma has ``</s>`` for HTML
(llama.cpp makes the latter exception for Gemma 4 only)."""


def end_tokens(tokens: Sequence[str], named: dict[str, int]) -> tuple[int, ...]:
    """Return the ids of the tokens that end a text: those in the metadata, then those found by
    text.

    ``named`` contains the ids under those ``METADATA_KEYS`` that the file has.
    """
    texts = set(_TEXTS)
    for key, others in _TEXTS_WITHOUT_KEY.items():
        if key not in named:
            texts |= others
    found = [named[key] for key in METADATA_KEYS if key in named]
    found += [token for token, text in enumerate(tokens) if text in texts]
    left_out = _left_out({tokens[token] for token in found})
    return tuple(token for token in dict.fromkeys(found) if tokens[token] not in left_out)


def _left_out(ends: Collection[str]) -> set[str]:
    return {text for text, others in _EXCEPTIONS if others.issubset(ends)}
