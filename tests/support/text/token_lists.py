"""The token list of a tokenizer, by its own methods: what files read without it must give, too."""

from __future__ import annotations

from potluck.types.text import Tokenizer, TokenList


def list_tokens(tokenizer: Tokenizer) -> TokenList:
    """Return the token list of ``tokenizer``."""
    control = {}
    for text in tokenizer.special_tokens:
        tokens = tokenizer.encode(text, add_bos=False, parse_special=True)
        if len(tokens) == 1:
            control[tokens[0]] = text
    return TokenList(
        data=[tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)],
        control=control,
        end_tokens=tokenizer.eos_token_ids,
    )
