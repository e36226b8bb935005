"""``potluck fetch`` with the real huggingface_hub, from a hub where much goes wrong."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.kernels.build import not_shown
from support.models.hub_models import DEMO, SMALL, WEIGHTS, hub_environment
from support.network.fake_hub import FakeHub, Repository, serve_hub
from support.processes.command import COMMAND, assert_refused, run_command
from support.processes.environment import environment
from support.processes.waiting import eventually
from support.schemas import validate_document

MODEL = "org/fox"
NUM_WEIGHTS_BYTES = len(DEMO[WEIGHTS])
NUM_SMALL_BYTES = sum(map(len, SMALL.values()))
HALF = NUM_WEIGHTS_BYTES // 2


def fetch(env: dict[str, str], *arguments: str) -> dict[str, Any]:
    completed = run_command("fetch", *(arguments or (MODEL,)), "--json", env=env)
    assert completed.returncode == 0, completed.stderr
    document: dict[str, Any] = json.loads(completed.stdout)
    validate_document(document)
    for each in document["files"]:
        assert Path(each["path"]).read_bytes() == DEMO[each["name"]]
    return document


def start(env: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, "fetch", MODEL],
        env=environment(**env),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def await_bytes(hub: FakeHub, num_bytes: int) -> None:
    eventually(lambda: hub.sent_bytes[WEIGHTS] >= num_bytes, within=30)


def nothing_kept(home: Path) -> bool:
    """Whether neither the cache nor what is gathered for it has anything of the size of weights."""
    return all(path.stat().st_size < 2**20 for path in home.rglob("*") if path.is_file())


def test_what_was_fetched_and_what_was_there(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint, HF_TOKEN="secret")
        first = fetch(env)
        assert set(hub.fetched) == {each["name"] for each in first["files"]} == set(DEMO)
        assert first["fetched_bytes"] == NUM_SMALL_BYTES + NUM_WEIGHTS_BYTES
        assert first["present_bytes"] == 0
        assert hub.foreign_tokens == []
        sent = sum(hub.sent_bytes.values())
        again = fetch(env)
        assert again["fetched_bytes"] == 0
        assert again["present_bytes"] == NUM_SMALL_BYTES + NUM_WEIGHTS_BYTES
        assert sum(hub.sent_bytes.values()) == sent
        completed = run_command("fetch", MODEL, env=env)
        assert completed.stdout.strip() == first["path"]
        assert "downloaded 0 B in 0 files" in completed.stderr
        pinned = run_command("fetch", first["pinned"], env={**env, "HF_HUB_OFFLINE": "1"})
        assert pinned.stdout == completed.stdout, pinned.stderr
    assert Path(first["path"]).name == hub.repositories[MODEL].commit


def test_named_files_only(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        fetch(env, MODEL, "--file", "tokenizer.json", "--file", "config.json")
        assert hub.fetched == ["tokenizer.json", "config.json"]
        missing = run_command("fetch", MODEL, "--file", "absent.safetensors", env=env)
        assert_refused(missing, 2, "no file org/fox:absent.safetensors", "Hub page")
        assert_refused(run_command("fetch", "demo", env=env), 2, "not a Hub model id", "org/name")
        unknown = run_command("fetch", f"{MODEL}@v9", env=env)
        assert_refused(unknown, 2, "no such revision", "a tag")


@pytest.mark.parametrize("resets", [False, True])
def test_broken_connections_are_taken_up_again(tmp_path: Path, resets: bool) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        hub.breaks[WEIGHTS] = [HALF, HALF + 2**20]
        hub.resets = resets
        document = fetch(hub_environment(tmp_path, hub.endpoint))
        starts = [at for name, at in zip(hub.fetched, hub.starts, strict=True) if name == WEIGHTS]
    assert starts == [0, HALF, HALF + 2**20]
    assert document["fetched_bytes"] == NUM_SMALL_BYTES + NUM_WEIGHTS_BYTES


def test_a_killed_fetch_is_taken_up_again(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        hub.held_after = HALF
        killed = start(env)
        await_bytes(hub, HALF)
        eventually(
            lambda: any(path.stat().st_size >= HALF - 2**20 for path in tmp_path.rglob("partial/*"))
        )
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        hub.held_after = None
        hub.released.set()
        document = fetch(env)
        assert hub.starts[-1] >= HALF - 2**20
        assert document["fetched_bytes"] == NUM_WEIGHTS_BYTES - hub.starts[-1]


def test_what_was_kept_and_is_damaged_is_fetched_anew(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        hub.breaks[WEIGHTS] = [HALF] * 9
        hub.has_ranges = False
        broken = run_command("fetch", MODEL, env=env)
        assert_refused(broken, 2, "could not be downloaded", "network")
        (partial,) = (path for path in tmp_path.rglob("partial/*") if path.stat().st_size == HALF)
        partial.write_bytes(bytes(HALF))
        hub.breaks.clear()
        hub.has_ranges = True
        fetch(env)
        assert hub.starts[-2:] == [HALF, 0]


def test_a_refused_range_begins_anew(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        hub.breaks[WEIGHTS] = [HALF]
        hub.refused_rests = 1
        fetch(hub_environment(tmp_path, hub.endpoint))
        assert hub.starts[-2:] == [0, 0]


def test_a_server_without_ranges_begins_anew(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        hub.breaks[WEIGHTS] = [HALF]
        hub.has_ranges = False
        fetch(hub_environment(tmp_path, hub.endpoint))
        assert hub.starts[-2:] == [0, 0]


def test_a_hub_that_says_to_wait_is_waited_for(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        hub.busy, hub.retry_after = 2, "1"
        started = time.monotonic()
        fetch(env, MODEL, "--file", "config.json")
        assert time.monotonic() - started >= 2
        hub.busy, hub.retry_after = 1, None
        fetch(env, MODEL, "--file", "tokenizer.json")
        hub.busy, hub.retry_after = 99, "3600"
        completed = run_command("fetch", MODEL, env=hub_environment(tmp_path / "b", hub.endpoint))
        assert_refused(completed, 2, "rate limit is exceeded", "in 3600 s")
        assert "HF_TOKEN" in completed.stderr


def altered(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("name", "served", "message"),
    [
        (WEIGHTS, altered(DEMO[WEIGHTS]), "has the digest"),
        ("tokenizer.json", altered(DEMO["tokenizer.json"]), "has the digest"),
        (WEIGHTS, DEMO[WEIGHTS][:-9], f"has {NUM_WEIGHTS_BYTES - 9} bytes, but"),
        (WEIGHTS, DEMO[WEIGHTS] + b"more", f"larger than the {NUM_WEIGHTS_BYTES} bytes"),
    ],
    ids=["content", "small-file", "short", "long"],
)
def test_what_is_not_what_the_hub_lists_is_removed(
    tmp_path: Path, name: str, served: bytes, message: str
) -> None:
    repository = Repository(files={**DEMO, name: served}, listed={name: DEMO[name]})
    with serve_hub({MODEL: repository}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("fetch", MODEL, env=env)
        assert_refused(completed, 1, message, "try again")
        assert f"{MODEL}:{name}" in completed.stderr
        assert nothing_kept(tmp_path)
        hub.repositories[MODEL] = Repository(files=DEMO)
        fetch(env)


def test_a_full_disk_in_the_middle(tmp_path: Path) -> None:
    if shutil.which("prlimit") is None:
        pytest.fail("prlimit is missing (util-linux)")
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        completed = run_command("fetch", MODEL, env=env, prefix=("prlimit", f"--fsize={HALF}"))
        assert_refused(completed, 1, "cannot be written: File too large", "HF_HOME")
        fetch(env)
        assert hub.starts[-1] == HALF, "what had been fetched was kept"


def test_what_would_fill_the_disk_is_not_begun(tmp_path: Path) -> None:
    home = tmp_path / "small disk"
    home.mkdir()
    in_namespace = ("unshare", "--user", "--map-root-user", "--mount")
    mounted = (*in_namespace, "sh", "-c", 'mount -t tmpfs -o size=4m none "$HF_HOME"; exec "$@"')
    if subprocess.run((*in_namespace, "true"), check=False, capture_output=True).returncode:
        not_shown("no mount namespace can be made here")
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(home, hub.endpoint)
        completed = run_command("fetch", MODEL, env=env, prefix=(*mounted, "sh"))
        assert_refused(completed, 1, "must be downloaded, but", "HF_HOME")
        assert WEIGHTS not in hub.fetched


def test_a_gated_repository(tmp_path: Path) -> None:
    with serve_hub({MODEL: Repository(files=DEMO, is_gated=True)}) as hub:
        completed = run_command("fetch", MODEL, env=hub_environment(tmp_path, hub.endpoint))
        assert_refused(completed, 2, "is a gated model", "accept its terms")


def test_two_at_once_fetch_it_once(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        fetch(env, MODEL, *(word for name in SMALL for word in ("--file", name)))
        hub.held_after = 2**20
        both = [start(env), start(env)]
        await_bytes(hub, 2**20)
        time.sleep(1.5)  # for the other to find it locked
        hub.released.set()
        assert [process.wait(60) for process in both] == [0, 0]
        assert hub.fetched.count(WEIGHTS) == 1
        assert fetch(env)["fetched_bytes"] == 0


def test_one_goes_on_where_another_was_killed(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        fetch(env, MODEL, *(word for name in SMALL for word in ("--file", name)))
        hub.held_after = HALF
        first = start(env)
        await_bytes(hub, HALF)
        second = start(env)
        time.sleep(1.5)
        first.kill()
        first.wait()
        hub.released.set()
        assert second.wait(60) == 0
        assert hub.starts[-1] >= HALF - 2**20
        assert fetch(env)["fetched_bytes"] == 0


def test_what_others_have_fetched_is_used_offline(tmp_path: Path) -> None:
    with serve_hub({MODEL: DEMO}) as hub:
        env = hub_environment(tmp_path, hub.endpoint)
        fetch(env)
    for own in tmp_path.rglob(".potluck"):
        shutil.rmtree(own)
    offline = fetch({**env, "HF_HUB_OFFLINE": "1"})
    assert offline["fetched_bytes"] == 0
    assert {each["name"] for each in offline["files"]} == set(DEMO)
