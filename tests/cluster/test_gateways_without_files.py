"""Nodes that have none of a model's files answer clients for it all the same."""

from __future__ import annotations

import json
import shutil

import openai
from support.cluster.agents import AgentProcess, Fleet, await_ready, measured_cache, no_end
from support.processes.waiting import eventually

from potluck.catalog.locate import DEMO_DIRECTORY

CONTEXT = 64
PROMPT = "Once upon a time"
SCHEMA = {
    "name": "age",
    "strict": True,
    "schema": {
        "type": "object",
        "properties": {"age": {"type": "integer"}},
        "required": ["age"],
        "additionalProperties": False,
    },
}


def start(fleet: Fleet, number: int, *arguments: str) -> AgentProcess:
    """Start an agent with a cache and a working directory of its own."""
    folder = fleet.directory / f"home-{number}"
    folder.mkdir(exist_ok=True)
    return fleet.start(
        number,
        *arguments,
        join=fleet.agents.get(0) if number else None,
        environ={"XDG_CACHE_HOME": measured_cache(folder / "cache")},
        folder=folder,
    )


def texts_of(agent: AgentProcess) -> list[str | None]:
    """What a completion, a chat and an answer with a grammar give."""
    with agent.client() as client:
        completed = client.completions.create(
            model="m", prompt=PROMPT, max_tokens=12, temperature=0, logit_bias=no_end()
        )
        chatted = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=8,
            temperature=0,
            logit_bias=no_end(),
        )
        followed = client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=24,
            temperature=0,
            extra_body={"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
        )
    return [
        completed.choices[0].text,
        chatted.choices[0].message.content,
        followed.choices[0].message.content,
    ]


def is_found(agent: AgentProcess) -> bool:
    """Whether an agent answers for the model."""
    with agent.client() as client:
        try:
            client.completions.create(model="m", prompt=PROMPT, max_tokens=1)
        except openai.NotFoundError:
            return False
    return True


def test_they_read_the_texts_side_from_others(fleet: Fleet) -> None:
    first = start(fleet, 0).await_up()
    shutil.copytree(DEMO_DIRECTORY, fleet.directory / "home-0" / "model")
    others = [start(fleet, number).await_up() for number in (1, 2)]
    fleet.await_members()
    deployed = first.deploy("./model", name="m", context=CONTEXT)
    assert deployed["state"] == "ready"
    expected = texts_of(first)
    assert str(expected[-1]).startswith('{"age')
    for other in others:
        assert texts_of(other) == expected
        assert "refuses requests" not in other.command_line("ps").stdout
    # What an agent keeps for it is small: the weights are not among it.
    for number in (1, 2):
        models = fleet.directory / f"home-{number}" / "cache" / "potluck" / "models"
        names = {path.name for path in models.rglob("*") if path.is_file()}
        assert {"tokenizer.json", "config.json"} <= names
        assert not any(name.endswith(".safetensors") for name in names)
    state = json.loads(first.command_line("ps", "--json").stdout)
    assert state["deployments"]


def test_they_need_no_stage_for_that(fleet: Fleet) -> None:
    """The only stage is where the files are, so that nobody fetches weights; one joins later."""
    first, second = start(fleet, 0).await_up(), start(fleet, 1).await_up()
    shutil.copytree(DEMO_DIRECTORY, fleet.directory / "home-0" / "model")
    fleet.await_members()
    only = {"node_id": first.node_id, "unit_id": "cpu/native", "num_layers": 12}
    first.ask("deploy", model="./model", model_id="m", context_tokens=CONTEXT, layout=[only])
    expected = texts_of(first)
    eventually(lambda: is_found(second))
    assert texts_of(second) == expected
    third = start(fleet, 2).await_up()
    await_ready(third, "m")
    eventually(lambda: is_found(third))
    assert texts_of(third) == expected


def test_a_model_that_another_node_has_drafts(fleet: Fleet) -> None:
    """The node that is asked has the large model only, and another the small one."""
    first, second = start(fleet, 0).await_up(), start(fleet, 1).await_up()
    shutil.copytree(DEMO_DIRECTORY, fleet.directory / "home-0" / "model")
    shutil.copytree(DEMO_DIRECTORY, fleet.directory / "home-1" / "small")
    fleet.await_members()
    plain = first.deploy("./model", name="m", context=CONTEXT)
    assert plain["state"] == "ready"
    expected = texts_of(first)
    first.ask("undeploy", name="m")
    deployed = first.deploy("./model", name="m", context=CONTEXT, draft="./small")
    assert deployed["state"] == "ready"
    assert texts_of(second) == texts_of(first) == expected
    names = {
        each["model_id"]
        for each in json.loads(first.command_line("ps", "--json").stdout)["deployments"]
    }
    assert names == {"m", "small-draft"}
