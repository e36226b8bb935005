"""Fields that constrain the format of an answer: OpenAI's and vLLM's."""

from __future__ import annotations

from collections.abc import Mapping

from potluck import grammars
from potluck.api.dialects.openai.bodies import CommonBody, ResponseFormat, StructuredOutputs
from potluck.api.errors import invalid
from potluck.api.grammars import choice_grammar, only_one, schema_grammar, written_grammar


def requested_grammar(body: CommonBody) -> tuple[str, str] | None:
    """Return the field that constrains the answer, and its grammar; None if there is no constraint.

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


def _response_format(response_format: ResponseFormat) -> str | None:
    where, own = "response_format.json_schema", "response_format.schema"
    if response_format.schema is not None and response_format.type != "json_object":
        raise invalid(own, f"{own} requires the type json_object")
    if response_format.type != "json_schema":
        if response_format.json_schema is not None:
            raise invalid(where, f"{where} requires the type json_schema")
        if response_format.schema is not None:
            return schema_grammar(response_format.schema, own)
        return None if response_format.type == "text" else grammars.json_object()
    if response_format.json_schema is None:
        raise invalid(where, f"{where} is required", code="missing_required_parameter")
    document = response_format.json_schema.schema
    if document is None:  # OpenAI allows clients to omit "schema"
        return grammars.json_object()
    return schema_grammar(document, f"{where}.schema")


def _structured_outputs(outputs: StructuredOutputs) -> Mapping[str, str]:
    where = "structured_outputs"
    given: dict[str, str] = {}
    if outputs.json is not None:
        given[f"{where}.json"] = schema_grammar(outputs.json, f"{where}.json")
    if outputs.json_object:
        given[f"{where}.json_object"] = grammars.json_object()
    if outputs.regex is not None:
        given[f"{where}.regex"] = grammars.regex(outputs.regex)
    if outputs.choice is not None:
        given[f"{where}.choice"] = choice_grammar(outputs.choice, f"{where}.choice")
    if outputs.grammar is not None:
        given[f"{where}.grammar"] = written_grammar(outputs.grammar, f"{where}.grammar")
    if not given:
        raise invalid(where, f"{where} has no constraint: set json, regex, choice or grammar")
    return given
