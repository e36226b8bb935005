"""Text to tokens and back: tokenizers, streaming detokenization, chat templates.

``hugging_face`` and ``gguf`` read what a model brings; ``tokenizer`` is the one implementation of
``potluck.types.text.Tokenizer`` that both build; ``detokenize`` turns sampled tokens into text as
they come; ``chat`` turns messages into tokens. Importing this package loads neither ``tokenizers``
nor ``jinja2``.
"""
