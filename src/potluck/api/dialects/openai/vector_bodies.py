"""The bodies of embedding, rerank and score requests.

Embeddings follow OpenAI's API; ``/v1/rerank`` follows Jina, Cohere and vLLM, and ``/v1/score``
follows vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from potluck.api.bodies import StrictObject, parser
from potluck.api.dialects.openai.ignored_fields import SERVICE
from potluck.api.ignored_fields import LABELS, IgnoredField, InertFields

_HARMLESS: Mapping[str, IgnoredField] = {**SERVICE, "metadata": LABELS}

EMBEDDING = InertFields(harmless=_HARMLESS)
"""Fields of embedding requests that have no effect."""

RERANK = InertFields(
    harmless=_HARMLESS,
    neutral={
        "max_chunks_per_doc": (None,),
        "max_tokens_per_doc": (None,),
        "rank_fields": (None, ["text"]),
    },
)
"""Fields of rerank requests that have no effect."""

SCORE = InertFields(harmless=_HARMLESS)
"""Fields of score requests that have no effect."""


class EmbeddingBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/v1/embeddings``. ``input`` is validated when it is parsed."""

    model: str
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class Document(StrictObject, frozen=True, kw_only=True):
    """A document of ``/v1/rerank``."""

    text: str


class RerankBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/v1/rerank``. ``instruction`` is an extension for some templates."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None
    user: str | None = None


class ScoreBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/v1/score``: one text against several others, or pairs."""

    model: str
    text_1: str | list[str]
    text_2: str | list[str]
    instruction: str | None = None
    user: str | None = None


parse_embedding = parser(EmbeddingBody, EMBEDDING)
parse_rerank = parser(RerankBody, RERANK)
parse_score = parser(ScoreBody, SCORE)
