"""The addresses of the page: who may see what, and who may change anything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import httpx2
import pytest
from support.http.api_server import ask_app
from support.http.toy_gateway import ToyGateway
from support.page.played_console import PlayedConsole

from potluck.api.app import Page, build_app
from potluck.api.cluster import MAX_BODY_BYTES
from potluck.api.config import ApiConfig
from potluck.api.keys import ApiKeys, Role, create_api_key
from potluck.errors import EngineError, OverloadedError, ParameterError, PotluckError

ADMINISTRATION = (
    ("POST", "/cluster/plan"),
    ("POST", "/cluster/deployments"),
    ("DELETE", "/cluster/deployments/m"),
)
OPEN = ("/", "/page/app.js", "/cluster/access")
CLOSED = ("/cluster", "/cluster/series", "/metrics", "/v1/models")


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    content: bytes
    media_type: str


ASSETS = {
    "index.html": File(content=b"<!doctype html>", media_type="text/html; charset=utf-8"),
    "app.js": File(content=b"start()", media_type="text/javascript"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    use: str
    admin: str
    file: ApiKeys


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    path = tmp_path_factory.mktemp("keys") / "keys"
    use, admin = create_api_key(path, "user"), create_api_key(path, "boss", Role.ADMIN)
    return Keys(use=use, admin=admin, file=ApiKeys.load(path))


def ask(
    method: str,
    path: str,
    *,
    console: PlayedConsole | None = None,
    keys: ApiKeys | None = None,
    bearer: str | None = None,
    headers: dict[str, str] | None = None,
    body: bytes = b"{}",
    url: str = "http://127.0.0.1:7334",
) -> httpx2.Response:
    """What an application with a page answers."""
    sent = {"Accept": "text/html,*/*;q=0.8", **(headers or {})}
    if bearer is not None:
        sent["Authorization"] = f"Bearer {bearer}"

    gateway = ToyGateway()
    page = Page(console=console or PlayedConsole(), assets=ASSETS)
    try:
        app = build_app(gateway, ApiConfig(keys=keys), asyncio.Event(), page)
        content = body if method == "POST" else None
        return ask_app(app, method, path, url=url, headers=sent, content=content)
    finally:
        gateway.dispatcher.close()


def test_the_page_needs_no_key_and_shows_nothing_of_the_cluster(keys: Keys) -> None:
    assert [ask("GET", path, keys=keys.file).status_code for path in OPEN] == [200] * 3
    assert [ask("GET", path, keys=keys.file).status_code for path in CLOSED] == [401] * 4
    shown = ask("GET", "/", keys=keys.file)
    assert shown.content == ASSETS["index.html"].content
    assert shown.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_clients_recognize_a_server_by_ollamas_text(keys: Keys, method: str) -> None:
    shown = ask(method, "/", keys=keys.file, headers={"Accept": "*/*"})
    text = "" if method == "HEAD" else "Ollama is running"
    assert (shown.status_code, shown.text) == (200, text)
    assert shown.headers["vary"] == ask("GET", "/").headers["vary"] == "Accept"


@pytest.mark.parametrize("path", ["/", "/page/app.js"])
def test_the_page_runs_its_own_files_only(path: str) -> None:
    policy = ask("GET", path).headers["content-security-policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["frame-ancestors"] == rules["form-action"] == rules["base-uri"] == "'none'"
    assert "unsafe" not in policy
    assert ask("GET", path).headers["x-content-type-options"] == "nosniff"
    assert ask("GET", path).headers["referrer-policy"] == "no-referrer"


def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    etag = ask("GET", "/page/app.js").headers["etag"]
    again = ask("GET", "/page/app.js", headers={"If-None-Match": f'"x", {etag}'})
    assert (again.status_code, again.content) == (304, b"")
    assert ask("GET", "/page/app.js", headers={"If-None-Match": '"x"'}).status_code == 200


@pytest.mark.parametrize("path", ["nothing.js", "../app.js", "%2e%2e/keys.py", "", "a" * 5000])
def test_there_are_no_other_files(path: str) -> None:
    answer = ask("GET", f"/page/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_url")


def test_access_says_who_asks(keys: Keys) -> None:
    console = PlayedConsole()
    token = console.tokens.make()

    def access(bearer: str | None, file: ApiKeys | None) -> tuple[bool, str | None, bool]:
        answer = ask("GET", "/cluster/access", console=console, bearer=bearer, keys=file)
        shown = answer.json()
        assert answer.status_code == 200
        assert (shown["schema"], shown["host_name"]) == ("potluck.access/1", "played")
        return shown["needs_key"], shown["key_name"], shown["can_administer"]

    assert access(None, None) == (False, None, False)
    assert access("none", None) == (False, None, False)
    assert access(token, None) == (False, "potluck dashboard", True)
    assert access(None, keys.file) == access("pk-wrong", keys.file) == (True, None, False)
    assert access(keys.use, keys.file) == (True, "user", False)
    assert access(keys.admin, keys.file) == (True, "boss", True)
    assert access(token, keys.file) == (True, "potluck dashboard", True)


@pytest.mark.parametrize(("method", "path"), ADMINISTRATION)
def test_nobody_administers_without_the_right(keys: Keys, method: str, path: str) -> None:
    console = PlayedConsole()
    expected = {None: 401, "pk-wrong": 401, keys.use: 403}
    for bearer, status in expected.items():
        answer = ask(method, path, console=console, keys=keys.file, bearer=bearer)
        assert answer.status_code == status
    for bearer in (None, "none", keys.admin):  # no file of keys is in force
        answer = ask(method, path, console=console, bearer=bearer)
        assert (answer.status_code, answer.json()["error"]["code"]) == (
            403,
            "administrator_required",
        )
        assert "potluck dashboard" in answer.json()["error"]["message"]
    x_api_key = ask(
        method, path, console=console, keys=keys.file, headers={"x-api-key": keys.admin}
    )
    assert x_api_key.status_code == 403
    assert console.requests == []


@pytest.mark.parametrize(("method", "path"), ADMINISTRATION)
def test_those_with_the_right_do(keys: Keys, method: str, path: str) -> None:
    console = PlayedConsole()
    statuses = [
        ask(method, path, console=console, bearer=console.tokens.make()).status_code,
        ask(method, path, console=console, bearer=keys.admin, keys=keys.file).status_code,
    ]
    assert statuses == [202 if path == "/cluster/deployments" else 200] * 2
    assert len(console.requests) == 2


def test_a_name_may_have_slashes() -> None:
    console = PlayedConsole()
    token = console.tokens.make()
    ask("DELETE", "/cluster/deployments/org%2Fname:1", console=console, bearer=token)
    assert console.requests == [("undeploy", "org/name:1")]


def test_pages_of_others_are_refused_with_a_token_as_well() -> None:
    console = PlayedConsole()
    token = console.tokens.make()
    foreign = {"Origin": "http://evil.example"}
    for method, path in (*ADMINISTRATION, ("GET", "/cluster/events"), ("GET", "/cluster/access")):
        answer = ask(method, path, console=console, bearer=token, headers=foreign)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden_origin")
    rebound = ask("GET", "/cluster/access", console=console, url="http://evil.example")
    assert (rebound.status_code, rebound.json()["error"]["code"]) == (403, "forbidden_host")
    assert console.requests == []
    own = {"Origin": "http://127.0.0.1:7334"}
    answer = ask("POST", "/cluster/plan", console=console, bearer=token, headers=own)
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ParameterError("context_tokens", "too many", hint="take fewer"), 400),
        (EngineError("it does not fit", hint="add a machine"), 422),
        (OverloadedError("too many at once", retry_after_seconds=7), 429),
    ],
)
def test_what_prevents_a_plan_is_told_with_the_hint(error: PotluckError, status: int) -> None:
    console = PlayedConsole(error=error)
    answer = ask("POST", "/cluster/plan", console=console, bearer=console.tokens.make())
    assert answer.status_code == status
    assert error.message in answer.json()["error"]["message"]


def test_bodies_are_bounded() -> None:
    console = PlayedConsole()
    token = console.tokens.make()
    answer = ask(
        "POST", "/cluster/plan", console=console, bearer=token, body=b" " * (MAX_BODY_BYTES + 1)
    )
    assert answer.status_code == 413
    assert console.requests == []


@pytest.mark.parametrize("seconds", ["0", "-1", "3601", "x", "", "1e3", "9" * 5000, "٣"])
def test_seconds_of_the_series_are_checked(seconds: str) -> None:
    answer = ask("GET", f"/cluster/series?seconds={seconds}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "seconds")
    assert ask("GET", "/cluster/series?seconds=60").json()["seconds"] == 60


@pytest.mark.parametrize("step", ["0", "61", "x", ""])
def test_steps_of_the_series_are_checked(step: str) -> None:
    answer = ask("GET", f"/cluster/series?step={step}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "step")
    assert ask("GET", "/cluster/series?step=5").json()["step_seconds"] == 5


@pytest.mark.parametrize("accepted", ["gzip, br", "identity"])
def test_the_series_is_compressed_for_those_that_accept_that(accepted: str) -> None:
    answer = ask("GET", "/cluster/series", headers={"Accept-Encoding": accepted})
    assert answer.headers.get("Content-Encoding") == ("gzip" if "gzip" in accepted else None)
    assert answer.json() == {"schema": "potluck.series/1", "seconds": 3600, "step_seconds": 1}


@pytest.mark.parametrize("last", ["x", "-1", "9" * 30, "1.5", str(2**53)])
def test_ids_of_events_are_checked(last: str) -> None:
    answer = ask("GET", "/cluster/events", headers={"Last-Event-ID": last})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


def test_without_a_page_there_is_only_ollamas_text() -> None:
    gateway = ToyGateway()
    app = build_app(gateway, ApiConfig(), asyncio.Event())
    assert [ask_app(app, "GET", path).status_code for path in OPEN] == [200, 404, 404]
    gateway.dispatcher.close()
