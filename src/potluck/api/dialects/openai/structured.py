"""Fields that say what form an answer must have: OpenAI's, and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping

from potluck import grammars
from potluck.api.dialects.openai.bodies import CommonBody, ResponseFormat, StructuredOutputs
from potluck.api.errors import invalid
from potluck.api.grammars import choice_grammar, only_one, schema_grammar, written_grammar


def grammar_asked(body: CommonBody) -> tuple[str, str] | None:
    """Return the field that asks for a form of the answer, and the grammar; None: any text.

    Raises ``PotluckError``.
    """
    given: dict[str, str] = {}
    if body.response_format is not None:
        grammar = _response_format(body.response_format)
        if grammar is not None:
            given["response_format"] = grammar
    if body.structured_outputs is not None:
        given.update(_structured_outputs(body.structured_outputs))
    if body.guided_json is not None:
        given["guided_json"] = schema_grammar(body.guided_json, "guided_json")
    if body.guided_regex is not None:
        given["guided_regex"] = grammars.regex(body.guided_regex)
    if body.guided_choice is not None:
        given["guided_choice"] = choice_grammar(body.guided_choice, "guided_choice")
    if body.guided_grammar is not None:
        given["guided_grammar"] = written_grammar(body.guided_grammar, "guided_grammar")
    return only_one(given)


def _response_format(asked: ResponseFormat) -> str | None:
    where = "response_format.json_schema"
    if asked.type != "json_schema":
        if asked.json_schema is not None:
            raise invalid(where, f"{where} is for the type json_schema")
        return None if asked.type == "text" else grammars.json_object()
    if asked.json_schema is None:
        raise invalid(where, f"{where} is missing", code="missing_required_parameter")
    document = asked.json_schema.document
    if document is None:  # OpenAI's "schema" may be left out
        return grammars.json_object()
    return schema_grammar(document, f"{where}.schema")


def _structured_outputs(asked: StructuredOutputs) -> Mapping[str, str]:
    where = "structured_outputs"
    given: dict[str, str] = {}
    if asked.document is not None:
        given[f"{where}.json"] = schema_grammar(asked.document, f"{where}.json")
    if asked.json_object:
        given[f"{where}.json_object"] = grammars.json_object()
    if asked.regex is not None:
        given[f"{where}.regex"] = grammars.regex(asked.regex)
    if asked.choice is not None:
        given[f"{where}.choice"] = choice_grammar(asked.choice, f"{where}.choice")
    if asked.grammar is not None:
        given[f"{where}.grammar"] = written_grammar(asked.grammar, f"{where}.grammar")
    if not given:
        raise invalid(where, f"{where} asks for nothing: give json, regex, choice or grammar")
    return given
