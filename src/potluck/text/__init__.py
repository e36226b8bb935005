"""Text to tokens and back: tokenizers, streaming detokenization, chat templates.

``hugging_face`` and ``gguf`` read a model's tokenizer files; both build ``tokenizer``, the one
implementation of ``potluck.types.text.Tokenizer``; ``detokenize`` turns sampled tokens into text as
they arrive; ``chat`` turns messages into tokens. Importing this package loads neither
``tokenizers`` nor ``jinja2``.
"""

__all__ = [
    "chat",
    "detokenize",
    "fill_in",
    "gguf",
    "hugging_face",
    "reasoning",
    "rerank",
    "tool_formats",
]
