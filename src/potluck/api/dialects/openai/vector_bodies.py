"""The bodies of embeddings, rerank and score.

Embeddings are OpenAI's. ``/v1/rerank`` is as Jina, Cohere and vLLM have it, ``/v1/score`` as vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel

from potluck.api.bodies import FIRST_ERROR, STRICT, parse_object, validated
from potluck.api.dialects.openai.other_fields import SERVICE
from potluck.api.other_fields import LABELS, Harmless, Others, without_others

_HARMLESS: Mapping[str, Harmless] = {**SERVICE, "metadata": LABELS}

EMBEDDING = Others(harmless=_HARMLESS)
"""Fields of embeddings that do nothing here."""

RERANK = Others(
    harmless=_HARMLESS,
    neutral={
        "max_chunks_per_doc": (None,),
        "max_tokens_per_doc": (None,),
        "rank_fields": (None, ["text"]),
    },
)
"""Fields of rerank that do nothing here."""

SCORE = Others(harmless=_HARMLESS)
"""Fields of score that do nothing here."""

_Texts = Annotated[list[str], FIRST_ERROR]


class EmbeddingBody(BaseModel):
    """The body of ``/v1/embeddings``. ``input`` is checked where it is read."""

    model_config = STRICT

    model: str
    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None


class Document(BaseModel):
    """A document of ``/v1/rerank``."""

    model_config = STRICT

    text: str


class RerankBody(BaseModel):
    """The body of ``/v1/rerank``. ``instruction`` is an extension, for templates that have one."""

    model_config = STRICT

    model: str
    query: str
    documents: Annotated[list[str | Document], FIRST_ERROR]
    top_n: int | None = None
    return_documents: bool | None = None
    instruction: str | None = None
    user: str | None = None


class ScoreBody(BaseModel):
    """The body of ``/v1/score``: one text with each of others, or pairs."""

    model_config = STRICT

    model: str
    text_1: str | _Texts
    text_2: str | _Texts
    instruction: str | None = None
    user: str | None = None


def parse_embedding(body: bytes | bytearray) -> EmbeddingBody:
    """Read a request for embeddings. Raises ``ApiError`` that names what is wrong."""
    return validated(EmbeddingBody, without_others(parse_object(body), EMBEDDING, ""))


def parse_rerank(body: bytes | bytearray) -> RerankBody:
    """Read a request to rank documents. Raises ``ApiError`` that names what is wrong."""
    return validated(RerankBody, without_others(parse_object(body), RERANK, ""))


def parse_score(body: bytes | bytearray) -> ScoreBody:
    """Read a request to score pairs. Raises ``ApiError`` that names what is wrong."""
    return validated(ScoreBody, without_others(parse_object(body), SCORE, ""))
