"""``potluck`` in processes that are forked from one that has imported everything.

To start Python and import takes a second of processor time, most of what a short test costs. What
follows the imports is the same: ``main`` in a process, a session and an environment of its own.
What measures time or memory, or is started in some other way, is started as its users do.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from support.network.namespaces import become_host
from support.processes.environment import environment

_MODULE = "support.processes.forked_commands"
_SECONDS = 60.0


class ForkedCommand:
    """A process that was forked, used as a ``subprocess.Popen``. Thread-safe."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.args = ["potluck", *arguments]
        self.pid = 0
        self.returncode: int | None = None
        self._has_ended = threading.Event()

    def poll(self) -> int | None:
        """Its exit status, if it has ended; negative is the number of a signal."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        if not self._has_ended.wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it is known to have ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it; nothing happens if it has ended."""
        try:
            self.send_signal(signal.SIGKILL)
        except ProcessLookupError:
            return

    def end(self, returncode: int) -> None:
        """Note that it has ended."""
        self.returncode = returncode
        self._has_ended.set()


class ForkingServer:
    """The process that forks, and what it tells of its children. Thread-safe."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._started: queue.Queue[int] = queue.Queue()
        self._running: dict[int, ForkedCommand] = {}
        self._ended: dict[int, int] = {}
        self._notes = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
            text=True,
            bufsize=1,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        stdin: Path | None = None,
        folder: Path | None = None,
        namespace: str | None = None,
        seconds: float | None = None,
    ) -> ForkedCommand:
        """Run ``potluck ARGUMENTS`` in a new session with the environment ``env``.

        It may be in a ``folder`` and a network ``namespace`` of its own. The files are written from
        their beginning. After ``seconds``, if given, ``SIGALRM`` ends the process.
        """
        request = {
            "arguments": list(arguments),
            "environment": dict(env),
            "stdout": str(stdout),
            "stderr": str(stderr),
            "stdin": os.devnull if stdin is None else str(stdin),
            "folder": None if folder is None else str(folder),
            "namespace": namespace,
            "seconds": seconds,
        }
        command = ForkedCommand(arguments)
        for path in (stdout, stderr):
            path.write_bytes(b"")
        with self._turn:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            command.pid = self._started.get(timeout=_SECONDS)
        with self._notes:
            if command.pid in self._ended:
                command.end(self._ended.pop(command.pid))
            else:
                self._running[command.pid] = command
        return command

    def close(self) -> None:
        """End the process that forks; its children are left to who started them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_SECONDS)
        self._listener.join(_SECONDS)
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *numbers = line.split()
            if what == "started":
                self._started.put(int(numbers[0]))
                continue
            pid, status = map(int, numbers)
            with self._notes:
                command = self._running.pop(pid, None)
                if command is None:
                    self._ended[pid] = status
                else:
                    command.end(status)


@functools.cache
def forking_server() -> ForkingServer:
    """One for all tests of this process, which ends with it."""
    server = ForkingServer()
    atexit.register(server.close)
    return server


class _Serving:
    """The loop of the process that forks: requests come on stdin, one per line."""

    def __init__(self) -> None:
        self._rest = b""
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the tests, which end everything
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)

    def run(self) -> None:
        """Serve until stdin ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fd == self._woken:
                        os.read(self._woken, 4096)
                        self._reap()
                    elif not self._read():
                        return

    def _read(self) -> bool:
        read = os.read(0, 1 << 16)
        *lines, self._rest = (self._rest + read).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(request)
            print("started", pid, flush=True)
        return bool(read)

    @staticmethod
    def _reap() -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            print("ended", pid, os.waitstatus_to_exitcode(status), flush=True)


def _become(request: Mapping[str, Any]) -> None:
    """Run the command in this process, and end it."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        os.dup2(os.open(request["stdin"], os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(request[name], os.O_WRONLY), number)
        os.closerange(3, 256)
        if request["folder"] is not None:
            os.chdir(request["folder"])
        if request["namespace"] is not None:
            become_host(request["namespace"])
        if request["seconds"] is not None:
            signal.setitimer(signal.ITIMER_REAL, request["seconds"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["potluck", *request["arguments"]]
        from potluck.cli.main import main

        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - the child never goes back to the loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve() -> None:
    # What commands and agents import when they run.
    import potluck.api.server
    import potluck.cli.app
    import potluck.cli.cluster
    import potluck.cli.up
    import potluck.cluster.agent.control  # noqa: F401

    with _Serving() as serving:
        serving.run()


if __name__ == "__main__":
    _serve()
