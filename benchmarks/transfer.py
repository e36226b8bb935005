"""Measure the transfer of weights between nodes: ``benchmarks/METHODOLOGY.md``, "Transfer".

    python benchmarks/transfer.py [--megabytes 768] [--link 200mbit] [--output FILE]

Two transfer processes with certificates of their own: over loopback, into a store and through a
window; then, where network namespaces can be made, over a link of the given rate, beside small
frames that go to and fro on the same link as a deployment's steps would.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from circumstances import circumstances
from processes import memory_bytes

from potluck.cluster.network.trust.authority import derive_authority, issue_credentials
from potluck.cluster.network.trust.pem_files import pem_paths, write_pem_files
from potluck.cluster.network.trust.secret import parse_secret
from potluck.cluster.transfer.client import TransferClient
from potluck.cluster.transfer.messages import TransferSettings
from potluck.cluster.transfer.supervisor import TransferProcess
from potluck.types.cluster import NodeId
from potluck.types.content import ChunkSource, FileContent, Manifest, ManifestFile, SourceKind

sys.path.append(str(Path(__file__).parents[1] / "tests"))

SECRET = "4f1d8a60b93ce27581f6d0ea427b9c35e8a71bd2064fc93d5e80a7b61c2f94d3"
OWNER, TAKER = NodeId("a" * 16), NodeId("b" * 16)
JOB = "bench"
READ_BYTES = 8 * 2**20
FRAME_BYTES = 16_384
"""The size of a step's hidden states: one sequence of a model of width 4096, in float32."""

ECHO_SECONDS = 8.0
ECHO_PORT = 7999


def main() -> None:
    """Measure, print a table, write the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--megabytes", type=int, default=768)
    parser.add_argument("--link", default="200mbit", help="as tc-tbf(8) takes a rate")
    parser.add_argument("--output", type=Path)
    parser.add_argument(
        "--role", choices=("owner", "taker", "echo", "ping"), help=argparse.SUPPRESS
    )
    parser.add_argument("--options", default="{}", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = json.loads(arguments.options)
    match arguments.role:
        case "owner":
            asyncio.run(_own(**options))
        case "taker":
            asyncio.run(_take(**options))
        case "echo":
            _echo(**options)
        case "ping":
            print(json.dumps(_ping(**options)))
        case _:
            _measure(arguments.megabytes, arguments.link, arguments.output)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    pass


def _measure(megabytes: int, link: str, output: Path | None) -> None:
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(dir=_memory()) as directory:
        folder = Path(directory)
        model = folder / "model.bin"
        with model.open("wb") as file:
            for _ in range(megabytes):
                file.write(os.urandom(2**20))
        for keeps in (True, False):
            result = {"path": "loopback", "keeps": keeps} | _transfer(folder, model, keeps=keeps)
            results.append(result)
            print(json.dumps(result))
        for result in _beside_frames(folder, model, link):
            results.append(result)
            print(json.dumps(result))
    if output is not None:
        document = {"circumstances": circumstances(), "results": results}
        output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _memory() -> str | None:
    """Return a folder in memory, so that no disk is measured; None if there is none."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _start(role: str, options: dict[str, object], prefix: list[str]) -> subprocess.Popen[str]:
    command = [*prefix, sys.executable, __file__, "--role", role]
    return subprocess.Popen(
        [*command, "--options", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )


def _transfer(
    folder: Path,
    model: Path,
    *,
    keeps: bool,
    hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1"),
    prefixes: tuple[list[str], list[str]] = ([], []),
    serving_rate: float = 0.0,
) -> dict[str, object]:
    owner = _start(
        "owner",
        {"folder": str(folder), "host": hosts[0], "model": str(model), "rate": serving_rate},
        prefixes[0],
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner, contextlib.closing(owner.stdin):
        offer = json.loads(owner.stdout.readline())
        options = {"folder": str(folder), "host": hosts[1], "keeps": keeps, **offer}
        with _start("taker", options, prefixes[1]) as taker:
            assert taker.stdout is not None
            result = json.loads(taker.stdout.readline())
        owner.stdin.write("\n")
        owner.stdin.flush()
        return {**result, **json.loads(owner.stdout.readline())}


async def _process(folder: Path, node: NodeId, host: str) -> TransferProcess:
    credentials = issue_credentials(derive_authority(parse_secret(SECRET)), node, [host])
    paths = write_pem_files(credentials, folder / node / "pem")
    assert paths == pem_paths(folder / node / "pem")
    return await TransferProcess.start(
        TransferSettings(
            host=host,
            node_id=node,
            **paths.texts(),
            store_folder=str(folder / node / f"weights-{time.time_ns()}"),
            limit_bytes=2**40,
        )
    )


async def _own(folder: str, host: str, model: str, rate: float) -> None:
    process = await _process(Path(folder), OWNER, host)
    content = await process.identify(Path(model))
    digests = await process.digests(content.sha256)
    assert digests is not None
    if rate:
        process.set_serving(True, link_bytes_per_second=rate)
    before = _cpu_seconds(process)
    offer = {"content": [content.sha256, content.num_bytes], "digests": digests.hex()}
    print(json.dumps({**offer, "address": process.address}), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    gigabytes = content.num_bytes / 1e9
    print(
        json.dumps(
            {
                "sender_cpu_seconds_per_gigabyte": (_cpu_seconds(process) - before) / gigabytes,
                "sender_peak_bytes": memory_bytes(process.pid, "VmHWM"),
            }
        ),
        flush=True,
    )
    await process.close()


async def _take(
    folder: str,
    host: str,
    keeps: bool,
    content: tuple[str, int],
    digests: str,
    address: tuple[str, int],
) -> None:
    process = await _process(Path(folder), TAKER, host)
    file_content = FileContent(*content)
    await process.add_digests(file_content, bytes.fromhex(digests), verified=True)
    idle_bytes, before = memory_bytes(process.pid, "VmHWM"), _cpu_seconds(process)
    manifest = Manifest("gguf", (ManifestFile("model.bin", file_content),), main="model.bin")
    source = ChunkSource(file_content.sha256, 0, file_content.num_chunks, SourceKind.PEER, OWNER)
    process.set_sources(JOB, manifest, [source], {OWNER: (address[0], address[1])})
    client = TransferClient(process.worker_socket())
    began = time.perf_counter()
    await asyncio.to_thread(_read, client, file_content, keeps)
    seconds = time.perf_counter() - began
    gigabytes = file_content.num_bytes / 1e9
    print(
        json.dumps(
            {
                "bytes": file_content.num_bytes,
                "seconds": seconds,
                "megabytes_per_second": gigabytes * 1000 / seconds,
                "receiver_cpu_seconds_per_gigabyte": (_cpu_seconds(process) - before) / gigabytes,
                "receiver_idle_bytes": idle_bytes,
                "receiver_peak_bytes": memory_bytes(process.pid, "VmHWM"),
            }
        ),
        flush=True,
    )
    client.close()
    await process.close()


def _read(client: TransferClient, content: FileContent, keeps: bool) -> None:
    client.want(JOB, [(content, [(0, content.num_bytes)])], keep=keeps)
    file = client.open_file(content, label="model", job=JOB)
    buffer = memoryview(bytearray(READ_BYTES))
    for at in range(0, content.num_bytes, READ_BYTES):
        file.read_into(at, buffer[: min(READ_BYTES, content.num_bytes - at)])


def _cpu_seconds(process: TransferProcess) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _beside_frames(folder: Path, model: Path, link: str) -> list[dict[str, object]]:
    """Measure frames' round trips on a separate link: idle, beside a transfer, beside a share."""
    from support.network.netns import lan

    results: list[dict[str, object]] = []
    try:
        with lan(2) as (one, two):
            for host in (one, two):
                shape = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", link)
                subprocess.run(
                    host.command(*shape, "burst", "256kb", "latency", "50ms"), check=True
                )
            rate = _bytes_per_second(link)
            with _start("echo", {"host": two.ip}, two.command()) as echo:
                assert echo.stdout is not None
                echo.stdout.readline()  # it listens
                for name, serving_rate in (("idle", None), ("unbounded", 0.0), ("share", rate)):
                    result: dict[str, object] = {"path": link, "beside": name}
                    thread = None
                    if serving_rate is not None:
                        thread = threading.Thread(
                            target=lambda given=serving_rate, into=result: into.update(
                                _transfer(
                                    folder,
                                    model,
                                    keeps=True,
                                    hosts=(one.ip, two.ip),
                                    prefixes=(one.command(), two.command()),
                                    serving_rate=given,
                                )
                            )
                        )
                        thread.start()
                        time.sleep(6)  # until it has hashed the file and moves it
                    with _start("ping", {"host": two.ip}, one.command()) as ping:
                        assert ping.stdout is not None
                        result |= json.loads(ping.stdout.read())
                    if thread is not None:
                        thread.join()
                    results.append(result)
                echo.kill()
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"no link was measured: {error}", file=sys.stderr)
    return results


def _bytes_per_second(link: str) -> float:
    return float(link.removesuffix("mbit")) * 1e6 / 8


def _echo(host: str) -> None:
    with socket.create_server((host, ECHO_PORT)) as server:
        print("listens", flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection, contextlib.suppress(OSError):
                while data := connection.recv(FRAME_BYTES):
                    connection.sendall(data)


def _ping(host: str) -> dict[str, object]:
    samples = []
    with socket.create_connection((host, ECHO_PORT), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frame = os.urandom(FRAME_BYTES)
        ends_at = time.perf_counter() + ECHO_SECONDS
        while time.perf_counter() < ends_at:
            began = time.perf_counter()
            connection.sendall(frame)
            left = FRAME_BYTES
            while left:
                left -= len(connection.recv(left))
            samples.append(time.perf_counter() - began)
            time.sleep(0.01)
    ordered = sorted(samples)
    return {
        "round_trip_median_seconds": statistics.median(ordered),
        "round_trip_p95_seconds": ordered[int(len(ordered) * 0.95)],
        "round_trips": len(ordered),
    }


if __name__ == "__main__":
    main()
