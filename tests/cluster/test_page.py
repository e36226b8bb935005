"""The page's addresses of three real agents: what is told while machines come, serve and go."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from support.cluster.agents import AgentProcess, Fleet, no_end
from support.processes.waiting import eventually

Document = dict[str, Any]


class Watched:
    """What an agent's event stream has told so far, by kind; read on a thread of its own."""

    def __init__(self, agent: AgentProcess) -> None:
        self.messages: dict[str, list[Document]] = {"cluster": [], "sample": [], "event": []}
        self._client = httpx2.Client(timeout=60)
        self._url = f"{agent.url}/cluster/events"
        self._thread = threading.Thread(target=self._read, name="events", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        kind = ""
        try:
            with self._client.stream("GET", self._url) as answer:
                for line in answer.iter_lines():
                    name, _, value = line.partition(": ")
                    if name == "event":
                        kind = value
                    elif name == "data":
                        self.messages[kind].append(json.loads(value))
        except httpx2.HTTPError:
            return  # it was closed, or its agent has ended

    def kinds(self) -> list[str]:
        """Of the events so far."""
        return [each["kind"] for each in self.messages["event"]]

    def event(self, kind: str) -> Document:
        """The last event of a kind."""
        return next(each for each in reversed(self.messages["event"]) if each["kind"] == kind)

    def await_event(self, kind: str, *, within: float = 30) -> Document:
        eventually(lambda: kind in self.kinds(), within=within, what=f"{kind}: {self.kinds()}")
        return self.event(kind)

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def agents(tmp_path: Any) -> Iterator[tuple[Fleet, list[AgentProcess]]]:
    with Fleet(tmp_path) as fleet:
        yield fleet, fleet.start_all(range(3))


def authorized(agent: AgentProcess) -> httpx2.Client:
    """A client with the right to administer, as potluck dashboard gives it."""
    token = agent.ask("dashboard")["token"]
    headers = {"Authorization": f"Bearer {token}"}
    return httpx2.Client(base_url=agent.url, headers=headers, timeout=60)


def test_a_model_is_deployed_watched_loses_a_machine_and_is_undeployed(
    agents: tuple[Fleet, list[AgentProcess]],
) -> None:
    _, (first, second, third) = agents
    watched = Watched(second)
    body = {"model": "demo", "context_tokens": 128, "cache_tokens": 256, "objective": "memory"}
    with authorized(second) as client:
        refused = httpx2.post(f"{second.url}/cluster/deployments", json=body)
        assert refused.status_code == 403
        assert client.post("/cluster/plan", json=body).json()["schema"] == "potluck.plan/1"
        begun = client.post("/cluster/deployments", json=body)
        assert begun.status_code == 202
        assert len(begun.json()["stages"]) == 3
        watched.await_event("ready")
        assert watched.kinds().count("deploying") == 1

        # A sample is the difference of two readings: the first must be before the answer.
        eventually(
            lambda: any("demo" in each["models"] for each in watched.messages["sample"]),
            within=10,
            what="the totals were read",
        )
        request = {"model": "demo", "prompt": "The fox", "max_tokens": 40, "logit_bias": no_end()}
        answer = client.post("/v1/completions", json=request)
        assert answer.status_code == 200

        def was_sampled() -> bool:
            samples = [each["models"].get("demo", {}) for each in watched.messages["sample"]]
            return any(each.get("tokens_per_second") for each in samples) and any(
                sum(filter(None, each.get("stage_seconds", ()))) > 0 for each in samples
            )

        eventually(was_sampled, within=30, what="the tokens are sampled")
        eventually(
            lambda: any(
                each["nodes"][2:] and each["deployments"] for each in watched.messages["cluster"]
            ),
            within=10,
            what="the cluster is shown",
        )
        eventually(
            lambda: len(httpx2.get(f"{second.url}/cluster").json()["links"]) >= 2,
            within=30,
            what="links are measured",
        )
        series = client.get("/cluster/series?seconds=60").json()
        rates = series["models"]["demo"]["tokens_per_second"]
        assert len(series["times"]) == len(rates) == 60
        assert abs(series["times"][-1] - time.time()) < 20
        assert max(filter(None, rates)) > 0

        third.kill()
        lost = watched.await_event("lost")
        assert lost["node_id"] == third.node_id
        recovered = watched.await_event("recovered", within=60)
        assert recovered["details"]["paused_seconds"] > 0
        moved = recovered["details"]["moved"]
        assert moved
        assert third.node_id not in {each["to"] for each in moved}
        ids = [each["id"] for each in watched.messages["event"]]
        assert ids == sorted(set(ids))

        assert client.delete("/cluster/deployments/demo").status_code == 200
        watched.await_event("undeployed")
        assert client.delete("/cluster/deployments/demo").status_code == 404
    assert first.end() == 0
    left = watched.await_event("left")
    assert left["node_id"] == first.node_id
    watched.close()


def test_a_layout_is_written_as_on_the_command_line(
    agents: tuple[Fleet, list[AgentProcess]],
) -> None:
    _, (first, second, _) = agents
    body = {"model": "demo", "context_tokens": 128}
    with authorized(first) as client:
        num_layers = client.post("/cluster/plan", json=body).json()["num_layers"]
        layout = f"{second.node_id}=1,{first.node_id}={num_layers - 1}"
        plan = client.post("/cluster/plan", json={**body, "layout": layout}).json()
        assert [(each["node_id"], each["end_layer"]) for each in plan["stages"]] == [
            (second.node_id, 1),
            (first.node_id, num_layers),
        ]
        wrong = client.post("/cluster/plan", json={**body, "layout": "nowhere=1"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "layout")


def test_what_does_not_fit_is_refused_or_told_as_failed(
    agents: tuple[Fleet, list[AgentProcess]],
) -> None:
    _, (first, _, _) = agents
    with authorized(first) as client:
        wrong = client.post("/cluster/plan", json={"model": "demo", "context_tokens": 10**6})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "context")
        huge = {"model": "demo", "context_tokens": 128, "cache_tokens": 2**24}
        refused = client.post("/cluster/deployments", json=huge)
        assert refused.status_code in (400, 422), refused.text
        for cache in (2**40, 2**62):  # more than a step can list
            beyond = client.post("/cluster/deployments", json={**huge, "cache_tokens": cache})
            assert (beyond.status_code, beyond.json()["error"]["param"]) == (400, "cache")
        assert httpx2.get(f"{first.url}/cluster").json()["deployments"] == []
