"""Misbehaving child processes: ``python -m support.machines.strange_child BEHAVIOUR …``."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

ANSWER = {"name": "card", "numbers": [1, 2.5]}
_SLEEP = [sys.executable, "-c", "import time; time.sleep(60)  # of a strange child"]


def answer() -> None:
    print(json.dumps(ANSWER), flush=True)


def progress() -> None:
    for line in ('{"progress": 0.25}', '{"progress": 1}'):
        print(line, flush=True)
    answer()


def odd_progress() -> None:
    print('{"progress": 7}')
    answer()


def progress_and_hang() -> None:
    print('{"progress": 0.5}', flush=True)
    time.sleep(60)


def refuse() -> None:
    print(json.dumps({"refused": "no such\n library"}))


def hang() -> None:
    print("looking", file=sys.stderr, flush=True)
    time.sleep(60)


def hang_and_ignore_signals() -> None:
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    hang()


def close_stdout_and_hang() -> None:
    sys.stdout.close()
    sys.stderr.close()
    os.closerange(0, 100)
    time.sleep(60)


def answer_after_queueing() -> None:
    """0.6 s of work, on a CPU that a process of its own wants as much."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    while time.process_time() < 0.6:
        pass
    rival.kill()
    rival.wait()
    answer()


def answer_after_children_have_queued() -> None:
    """0.6 s of work in processes of its own, a quarter each, on a CPU that a rival wants as much.

    This process waits for them as for a compiler, and is not ready to run itself.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    work = "import time\nwhile time.process_time() < 0.15: pass"
    for _ in range(4):
        subprocess.run([sys.executable, "-c", work], check=True)
    rival.kill()
    rival.wait()
    answer()


def answer_after_threads_have_queued() -> None:
    """0.6 s of work in another thread, while the main thread waits for it."""
    thread = threading.Thread(target=answer_after_queueing)
    thread.start()
    thread.join()


def signal_parent(name: str) -> None:
    """As a library does that takes its parent for its own."""
    os.kill(os.getppid(), signal.Signals[name])
    time.sleep(0.2)
    answer()


def signal_group(name: str) -> None:
    os.kill(0, signal.Signals[name])
    time.sleep(0.2)
    answer()


def leave_orphans() -> None:
    """One in its group, and one that has a session of its own, whose parents are gone."""
    fork = "import os, sys; os.fork() and os._exit(0)"
    for rest in ("", "; os.setsid()"):
        code = f"{fork}{rest}; os.execv(sys.executable, {_SLEEP!r})"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=sys.stdout)
    answer()


def leave_orphans_and_kill_parent() -> None:
    leave_orphans()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def leave_orphans_and_hang() -> None:
    leave_orphans()
    time.sleep(60)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die(name: str) -> None:
    print("about to die", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.Signals[name])


def segfault() -> None:
    ctypes.string_at(0)


def answer_and_crash() -> None:
    answer()
    os.kill(os.getpid(), signal.SIGSEGV)


def throw() -> None:
    raise RuntimeError("the driver said 42")


def leave(status: str) -> None:
    answer()
    sys.exit(int(status))


def grow() -> None:
    held = []
    while True:
        held.append(b"x" * (8 << 20))


def grow_in_a_child() -> None:
    code = "import time; held = b'x' * (400 << 20); time.sleep(60)"
    subprocess.run([sys.executable, "-c", code], check=False)


def map_a_large_file(path: str) -> None:
    """Resident, but the kernel may drop it: that is no growth."""
    with open(path, "rb") as file:  # noqa: PTH123 - mmap wants a file
        import mmap

        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        total = sum(view[i] for i in range(0, len(view), 4096))
    time.sleep(0.2)
    print(json.dumps({"total": total}))


def leave_a_child_with_the_pipes() -> None:
    """The grandchild has this process's own standard output, not only what libraries see."""
    subprocess.Popen(_SLEEP, stdout=sys.stdout)
    answer()


def hang_with_a_child() -> None:
    process = subprocess.Popen(_SLEEP)
    print(process.pid, file=sys.stderr, flush=True)
    time.sleep(60)


def print_raw(text: str) -> None:
    sys.stdout.write(text)


def print_bytes() -> None:
    sys.stdout.buffer.write(b'{"a": "\xff\xfe"}')


def print_nothing() -> None:
    pass


def print_endlessly() -> None:
    while True:
        print("x" * 10_000)


def progress_endlessly() -> None:
    while True:
        print('{"progress": 0.5}')


def complain_endlessly() -> None:
    for number in range(200_000):
        print(f"complaint {number}", file=sys.stderr)
    answer()


def chatter() -> None:
    """As a library written in C does."""
    os.write(1, b"Welcome to libvendor!\n")
    os.system("echo and its helper")
    answer()


def tell(*names: str) -> None:
    import resource

    print(
        json.dumps(
            {
                "pid": os.getpid(),
                "session": os.getsid(0),
                "stdin": sys.stdin.read(),
                "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
                "environment": {name: os.environ.get(name) for name in names},
                "first_path": sys.path[0],
            }
        )
    )


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
