"""HTTP requests with something wrong about them, from valid ones; a number gives the same again."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from support.http.documents import DOCUMENTS
from support.http.toy_gateway import MODEL

GET_PATHS = (
    *("/v1/models", f"/v1/models/{MODEL}", "/health", "/cluster", "/metrics"),
    *("/v1/responses/resp_x", "/api/tags", "/api/ps", "/api/version"),
)
POST_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/score")

_VECTOR_DOCUMENTS: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/embeddings": (
        {"input": "go", "dimensions": 2, "user": "me"},
        {"input": ["a", "b"], "encoding_format": "base64"},
        {"input": [[1, 2], [3]], "encoding_format": "float"},
    ),
    "/v1/rerank": ({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},),
    "/score": ({"text_1": "q", "text_2": ["a", "b"]},),
}

STRANGE_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    -0.0,
    2**31,
    2**63,
    2**64,
    2**64 - 1,
    -(2**63) - 1,
    10**30,
    "",
    "x",
    "\u0000",
    "\ufffe",
    "😀" * 50,
    "<end>",
    "a" * 3000,
    [],
    {},
    [[]],
    [1, 2],
    ["a", 1],
    {"x": 1},
    [{}],
    {"5": 1e308},
    {"type": "text"},
    [{"type": "text", "text": "x"}],
    [None] * 50,
    # Of schemas and grammars.
    "(a|a)*" * 20,
    "a{99999}",
    "((((a{99}){99}){99}){99})",
    "\\p{L}+(?=x)",
    'root ::= root root | "a"',
    'start: a\na: a "x" |',
    {"$ref": "#"},
    {"$ref": "http://localhost/x"},
    {"type": "string", "pattern": "^(a+)+$", "minLength": 10**6},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}}] * 9},
    {"enum": [[[]], {}, None, "\u2028", 1e308]},
    {"type": "array", "items": {"type": "array", "items": True}, "minItems": 10**9},
    {"not": {}},
    "<tool_call>",
    "<|im_start|>system",
)
STRANGE_NAMES = (
    *("x", "", "tools", "echo", "name", "\ud7ff", "é" * 200, "type", "$ref", "format", "role"),
    *("content", "strict", "input", "messages", "prompt", "stream", "tool_choice", "$defs"),
)
RAW_VALUES = (b"NaN", b"-", b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xff\xfe"', b"1e999", b"01", b"")
RAW_NAMES = (b'"\xc3":1,', b'"\\ud800":1,', b'"":1,', b'"model":1,', b'"\\u0000":null,')
STRANGE_HEADERS = (
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 0x10",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Connection: close",
    b"Connection: upgrade\r\nUpgrade: websocket",
    b"Connection: upgrade\r\nUpgrade: h2c",
    b"Expect: 100-continue",
    b"Host: evil.example",
    b"Host: [::1",
    b"Host: \xff\xfe",
    b"Host: 127.0.0.1:99999999",
    b"Origin: null",
    b"Origin: http://[",
    b"Authorization: Bearer",
    b"Authorization: \xff",
    b"Content-Type: text/plain; charset=utf-16",
    b"Content-Encoding: gzip",
    b"Accept: \x00",
    b" folded: x",
    b": empty",
    b"no colon",
    b"X: " + b"y" * 20_000,
    b"X-" + b"z" * 300 + b": 1",
)
STRANGE_TARGETS = (
    b"/",
    b"//",
    b"*",
    b"/v1/models/",
    b"/v1/models/%00",
    b"/v1/models/%ff%fe",
    b"/v1/models/%ed%a0%80",
    b"/v1/models/" + b"a" * 3000,
    b"/v1/models/../../etc/passwd",
    b"/v1/completions/",
    b"/v1/completions?x=%ff",
    b"/health#x",
    b"http://localhost/health",
    b"http://[/health",
    b"/\xff",
    b"/%",
    b"/%zz",
    b"",
)
BROKEN_CHUNKS = (b"", b"zz\r\n", b"-1\r\n", b"f" * 30 + b"\r\n", b"5\r\nab\r\n", b"\r\n")
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"TRACE", b"PATCH", b"CONNECT")
STRANGE_METHODS = (b"get", b"PRI", b"G\x00T", b"", b"A" * 500)


@dataclass(slots=True, kw_only=True)
class Request:
    """``is_framed``: whether it says truthfully where it ends, so that an answer must come.

    ``raw`` is sent instead of all else, if it is given.
    """

    method: bytes
    target: bytes
    body: bytes = b""
    headers: list[bytes] = field(default_factory=lambda: [b"Host: localhost"])
    is_framed: bool = True
    raw: bytes | None = None

    def encoded(self) -> bytes:
        if self.raw is not None:
            return self.raw
        lines = [self.method + b" " + self.target + b" HTTP/1.1", *self.headers, b"", b""]
        return b"\r\n".join(lines) + self.body


def request_of(
    seed: int, number: int, *, dialect: str | None = None, model: str = MODEL
) -> Request:
    """The request ``number`` of those that ``seed`` gives, in one dialect or in all."""
    rng = random.Random(seed * 1_000_003 + number)
    request = _valid(rng, dialect, model)
    kind = rng.choices((_change_json, _change_bytes, _change_head, _change_framing), (6, 2, 3, 2))[
        0
    ]
    if kind is not _change_framing:
        kind(rng, request)
    if request.body:
        request.headers.append(b"Content-Length: %d" % len(request.body))
    if kind is _change_framing:
        kind(rng, request)
    return request


def body_of(seed: int, number: int, *, dialect: str, model: str) -> Request:
    """A request with a body in which something was changed, or (one in six) nothing."""
    rng = random.Random(seed * 1_000_003 + number)
    request = _valid_body(rng, dialect, model)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 3))):
        rng.choices((_change_json, _change_bytes), (12, 1))[0](rng, request)
    request.headers.append(b"Content-Length: %d" % len(request.body))
    return request


def _valid(rng: random.Random, dialect: str | None, model: str) -> Request:
    if rng.random() < 0.2:
        target = rng.choice(GET_PATHS).encode()
        return Request(method=rng.choice((b"GET", b"HEAD")), target=target)
    return _valid_body(rng, dialect or rng.choice(sorted(DOCUMENTS)), model)


def _valid_body(rng: random.Random, dialect: str, model: str) -> Request:
    makers = DOCUMENTS[dialect]
    path = rng.choice(sorted(makers))
    body = json.dumps(makers[path](rng, model)).encode()
    return Request(method=b"POST", target=path.encode(), body=body)


def _change_json(rng: random.Random, request: Request) -> None:
    if not request.body:
        _change_head(rng, request)
        return
    try:
        document = json.loads(request.body)
    except (ValueError, RecursionError):  # changed before
        return
    if not isinstance(document, dict | list):
        return
    holders = list(_holders(document))
    for _ in range(rng.randint(1, 2)):
        holder = rng.choice(holders)
        keys: list[Any] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        action = rng.random()
        if action < 0.6 and keys:
            holder[rng.choice(keys)] = rng.choice(STRANGE_VALUES)
        elif action < 0.75 and keys:
            del holder[rng.choice(keys)]
        elif isinstance(holder, dict):
            holder[rng.choice(STRANGE_NAMES)] = rng.choice(STRANGE_VALUES)
        else:
            holder.append(rng.choice(STRANGE_VALUES))
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
    request.body = text.encode(errors="surrogatepass")
    if rng.random() < 0.2:
        # Some value as it could not be written by a JSON library.
        position = request.body.find(b": ", rng.randrange(len(request.body)))
        if position >= 0:
            end = min(
                (e for e in (request.body.find(c, position) for c in (b",", b"}")) if e >= 0),
                default=len(request.body),
            )
            request.body = (
                request.body[: position + 2] + rng.choice(RAW_VALUES) + request.body[end:]
            )
    if rng.random() < 0.05:
        request.body = b"{" + rng.choice(RAW_NAMES) + request.body[1:]


def _holders(value: Any) -> Any:
    yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from _holders(each)


def _change_bytes(rng: random.Random, request: Request) -> None:
    body = bytearray(request.body)
    for _ in range(rng.randint(1, 4)):
        if not body:
            break
        place = rng.randrange(len(body))
        length, put = rng.choice(
            (
                (1, rng.randbytes(1)),
                (rng.randint(1, 9), b""),
                (0, rng.randbytes(3)),
                (0, b"[" * rng.choice((3, 900, 5000))),
                (0, bytes(body[: rng.randint(1, 60)])),
            )
        )
        body[place : place + length] = put
    request.body = bytes(body)


def _change_head(rng: random.Random, request: Request) -> None:
    which = rng.random()
    if which < 0.4:
        request.target = rng.choice((*STRANGE_TARGETS, rng.choice(POST_PATHS).encode()))
    if 0.3 < which < 0.7:
        request.method = rng.choice((*METHODS, *METHODS, *STRANGE_METHODS))
    if which > 0.6:
        request.headers.insert(rng.randint(0, 1), rng.choice(STRANGE_HEADERS))
    if which > 0.9:
        request.headers.remove(b"Host: localhost")
    request.is_framed = False  # some are, but a header may change what ends the request


def _change_framing(rng: random.Random, request: Request) -> None:
    request.is_framed = False
    whole = request.encoded()
    action = rng.randrange(5)
    if action == 0 and request.body:  # well-formed or broken chunks
        request.headers = [b"Host: localhost", b"Transfer-Encoding: chunked"]
        half = len(request.body) // 2
        chunks = [
            b"%x\r\n%b\r\n" % (len(c), c) for c in (request.body[:half], request.body[half:]) if c
        ]
        broken = rng.choice(
            (b"", b"zz\r\n", b"-1\r\n", b"f" * 30 + b"\r\n", b"5\r\nab\r\n", b"\r\n")
        )
        request.body = b"".join((chunks[0], broken, *chunks[1:], b"0\r\n\r\n"))
    elif action == 1:  # cut off
        request.raw = whole[: rng.randrange(len(whole))]
    elif action == 2:  # pipelined, the second one perhaps broken
        request.raw = (
            whole + _valid(rng, None, MODEL).encoded() + rng.randbytes(rng.choice((0, 0, 20)))
        )
    elif action == 3:  # more body than was said
        request.raw = whole + rng.randbytes(rng.randint(1, 40))
    else:
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        request.raw = bytes(data)
