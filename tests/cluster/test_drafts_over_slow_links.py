"""Drafts keep a pipeline full whose links are slow: the same text in a part of the time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, no_end
from support.network.netns import Host, require_namespaces
from support.network.relay import PERFECT, Link, relayed_lan

LIMIT = "82M"
"""Of each agent, so that there are three stages."""

SLOW = Link(delay_seconds=0.012)
"""As Wi-Fi has it. From the last stage back to the first is a hop, too."""

NUM_TOKENS = 120

_ASK = """
import json, sys, time, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
arrivals, text, usage = [], "", None
with urllib.request.urlopen(request, timeout=60) as answer:
    for line in answer:
        line = line.decode().strip()
        if line.startswith("data: {"):
            document = json.loads(line[6:])
            usage = document.get("usage") or usage
            for choice in document["choices"]:
                text += choice["delta"].get("content") or ""
                arrivals.append(time.monotonic())
print(json.dumps({"text": text, "seconds": arrivals[-1] - arrivals[0], "usage": usage}))
"""


def ask(host: Host, agent: AgentProcess, prediction: str | None = None) -> Document:
    """Ask an agent from its host: the text, the seconds from its first token on, the usage."""
    body: Document = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Tell me of the harbour at night."}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0.8,
        "seed": 11,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": no_end(),
    }
    if prediction is not None:
        body["prediction"] = {"type": "content", "content": prediction}
    url = f"{agent.url}/v1/chat/completions"
    completed = subprocess.run(
        host.command(sys.executable, "-c", _ASK, url, json.dumps(body)),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    document: Document = json.loads(completed.stdout)
    return document


def measured(folder: Path) -> dict[str, Document]:
    """Answers over slow links: without drafts, with right ones, and with wrong ones."""
    with relayed_lan(3) as relay, Fleet(folder) as fleet:
        for number, host in enumerate(relay.hosts):
            join = fleet.agents[0] if number else None
            options = () if number else ("--lan",)
            agent = fleet.start(number, *options, join=join, memory_limit=LIMIT, host=host)
            agent.await_up()
        fleet.await_members()
        agent, host = fleet.agents[0], relay.hosts[0]
        answers: dict[str, Document] = {}
        for draft in ("off", "ngram"):
            deployed = agent.deploy(context=512, cache=1024, draft=draft)
            assert len(deployed["stages"]) == 3
            await_ready(agent, "demo")
            ask(host, agent)
            relay.set_all(SLOW)
            if draft == "off":
                answers["off"] = ask(host, agent)
                text = answers["off"]["text"]
            else:
                answers["right"] = ask(host, agent, text)
                words = text.split(" ")
                words[::3] = ["no"] * len(words[::3])
                answers["wrong"] = ask(host, agent, " ".join(words))
            relay.set_all(PERFECT)
            agent.ask("undeploy", name="demo")
        return answers


@pytest.mark.timing
def test_drafts_hide_the_links_from_one_stream(tmp_path: Path) -> None:
    require_namespaces()
    found = measured(tmp_path)
    print({kind: round(1000 * each["seconds"] / NUM_TOKENS, 2) for kind, each in found.items()})
    assert {each["text"] for each in found.values()} == {found["off"]["text"]}
    accepted = found["right"]["usage"]["completion_tokens_details"]
    assert accepted["accepted_prediction_tokens"] > NUM_TOKENS / 3
    assert found["right"]["seconds"] < found["off"]["seconds"] / 3
    assert found["wrong"]["seconds"] < 1.15 * found["off"]["seconds"]
