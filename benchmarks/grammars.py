"""Measure the costs of grammars: masks and tokens on the last stage, compiling, and vocabularies.

    python benchmarks/grammars.py OUT.json [--tekken FILE.json] [--model MODEL]

- *Mask*: seconds from asking for the mask of a sequence to having it, token after token of texts
  that are drawn evenly from what is allowed; *accept*: seconds to go on past a token. The first
  text meets a matcher that was just compiled, later ones a used one, as on a stage that serves.
- *Compile*: seconds from a grammar's text to a matcher that was not kept.
- *Vocabulary*: seconds and memory to prepare one, which a stage does once.
- *Many*: a thousand different schemas, one after another, each compiled and followed for a token;
  the growth of the process's memory.

``--tekken`` takes a vocabulary of Mistral's format (``mistral_common/data/tekken_240911.json``, of
131,072 tokens), ``--model`` any MODEL. Medians, and the 90th and 99th percentiles.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import random
import statistics
import time
from pathlib import Path

import numpy as np
from circumstances import circumstances
from processes import memory_bytes

from potluck.catalog import describe_model, load_token_list
from potluck.grammars import build
from potluck.grammars.check import GrammarChecker
from potluck.grammars.matchers import Matchers
from potluck.grammars.vocabulary import Vocabulary
from potluck.host.allocator import return_free_memory
from potluck.types.text import TokenList

SCHEMA = "potluck.benchmark.grammars/1"
NUM_TEXTS = 60
MAX_TOKENS = 150
NUM_COMPILED = 20
NUM_SCHEMAS = 1000

PERSON: dict[str, object] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 40},
                "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
        "kind": {"enum": ["alpha", "beta", "gamma"]},
    },
    "required": ["name", "age", "tags", "address", "kind"],
    "additionalProperties": False,
}
CALLS = """\
start: (call)* rest
rest: TEXT
TEXT: /(.|\\n)*/
head[lazy]: TEXT "<tool_call>"
call: head "{\\"name\\":\\"person\\",\\"arguments\\":" @person "}</tool_call>"
"""
GRAMMARS = {
    "schema": build.json_schema(PERSON),
    "any object": build.json_object(),
    "bounded strings": build.json_schema(
        {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 20}
    ),
    "regex": build.regex(r"[a-z]+@[a-z]+\.(com|org)"),
    "choice": build.choice(["red", "green", "blue"]),
    "sum": build.ebnf('root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'),
    "text with calls": build.combined(CALLS, {"person": build.json_schema(PERSON)}),
}


def held_bytes() -> int:
    """Return this process's anonymous memory in bytes, after freed memory was returned."""
    gc.collect()
    return_free_memory()
    return memory_bytes("self", "RssAnon")


def tekken_tokens(path: Path) -> TokenList:
    """Read a vocabulary in Mistral's format: control tokens first, then the others in base64."""
    document = json.loads(path.read_text(encoding="utf-8"))
    size = document["config"]["default_vocab_size"]
    num_control = document["config"]["default_num_special_tokens"]
    pieces = [base64.b64decode(each["token_bytes"]) for each in document["vocab"]]
    return TokenList(
        data=[b""] * num_control + pieces[: size - num_control],
        control={token: f"<control{token}>" for token in range(num_control)},
        end_tokens=(2,),
    )


def spread(seconds: list[float]) -> dict[str, float]:
    """Return quantiles in microseconds."""
    at = [1e6 * float(np.quantile(seconds, quantile)) for quantile in (0.5, 0.9, 0.99, 1.0)]
    return dict(zip(("median", "p90", "p99", "max"), (round(each, 1) for each in at), strict=True))


def follow(vocabulary: Vocabulary, grammar: str) -> dict[str, object]:
    """Follow texts drawn uniformly from those that a grammar allows, one after another."""
    matchers = Matchers(vocabulary)
    draws = random.Random(7)
    masks: list[float] = []
    accepts: list[float] = []
    for _ in range(NUM_TEXTS):
        matcher = matchers.take(grammar)
        for _ in range(MAX_TOKENS):
            started = time.perf_counter()
            mask = matcher.mask()
            masked = time.perf_counter()
            bits = np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))[0]
            token = int(bits[draws.randrange(len(bits))])
            before = time.perf_counter()
            was_allowed = matcher.accept(token)
            accepts.append(time.perf_counter() - before)
            masks.append(masked - started)
            assert was_allowed, matcher.problem
            if token in vocabulary.end_tokens:
                break
        matchers.give_back(matcher)
    compiled = []
    for _ in range(NUM_COMPILED):
        started = time.perf_counter()
        Matchers(vocabulary).take(grammar)
        compiled.append(time.perf_counter() - started)
    return {
        "num_tokens": len(masks),
        "mask_us": spread(masks),
        "accept_us": spread(accepts),
        "compile_ms": round(1e3 * statistics.median(compiled), 2),
    }


def many_schemas(vocabulary: Vocabulary) -> dict[str, object]:
    """Compile a schema for each of a thousand clients, and measure the time and memory."""
    before = held_bytes()
    matchers = Matchers(vocabulary)
    started = time.perf_counter()
    for number in range(NUM_SCHEMAS):
        schema = {**PERSON, "description": str(number), "title": "x" * (number % 7)}
        matcher = matchers.take(build.json_schema(schema))
        matcher.mask()
        matchers.give_back(matcher)
    seconds = time.perf_counter() - started
    return {
        "num_schemas": NUM_SCHEMAS,
        "seconds": round(seconds, 2),
        "num_kept": matchers.num_idle,
        "grown_bytes": held_bytes() - before,
    }


def check_seconds() -> dict[str, float]:
    """Time the gateway's checks of grammars in milliseconds; the first also starts the child."""
    checker = GrammarChecker()
    try:
        seconds = {}
        for name, grammar in GRAMMARS.items():
            started = time.perf_counter()
            checker.check(grammar)
            seconds[name] = round(1e3 * (time.perf_counter() - started), 2)
        return seconds
    finally:
        checker.close()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tekken", type=Path)
    parser.add_argument("--model", default="demo")
    arguments = parser.parse_args()
    if arguments.tekken is not None:
        tokens, name = tekken_tokens(arguments.tekken), arguments.tekken.name
    else:
        tokens, name = load_token_list(describe_model(arguments.model).files), arguments.model
    before = held_bytes()
    started = time.perf_counter()
    vocabulary = Vocabulary(tokens, len(tokens.data))
    seconds = time.perf_counter() - started
    result = {
        "schema": SCHEMA,
        "circumstances": circumstances(),
        "vocabulary": {
            "name": name,
            "num_tokens": len(tokens.data),
            "seconds": round(seconds, 3),
            "kept_bytes": held_bytes() - before,
        },
        "grammars": {each: follow(vocabulary, grammar) for each, grammar in GRAMMARS.items()},
        "many": many_schemas(vocabulary),
        "check_ms": check_seconds(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
