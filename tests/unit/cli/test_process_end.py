"""How a process ends while a thread is in Zenoh."""

from __future__ import annotations

import subprocess
import sys

from support.cluster.zenoh_threads import BUSY_IN_ZENOH


def end(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_thread_in_zenoh_does_not_change_the_exit_status() -> None:
    ended = end(
        BUSY_IN_ZENOH + "from potluck.cli.process_end import end_process, skip_finalization\n"
        "skip_finalization()\n"
        "end_process(3)\n"
    )
    assert (ended.returncode, ended.stderr) == (3, "")


def test_output_is_written_and_exit_functions_are_called() -> None:
    ended = end(
        "import atexit, sys\n"
        "from potluck.cli.process_end import end_process, skip_finalization\n"
        "atexit.register(lambda: print('released'))\n"
        "print('some of a line', end=', ')\n"
        "skip_finalization()\n"
        "end_process(4)\n"
    )
    assert (ended.returncode, ended.stdout) == (4, "some of a line, released\n")


def test_a_closed_stream_does_not_change_the_exit_status() -> None:
    ended = end(
        "import sys\n"
        "from potluck.cli.process_end import end_process, skip_finalization\n"
        "sys.stdout.close()\n"
        "sys.stderr = None\n"
        "skip_finalization()\n"
        "end_process(5)\n"
    )
    assert ended.returncode == 5


def test_any_other_process_is_finalized() -> None:
    ended = end(
        "from potluck.cli.process_end import end_process\n"
        "class Witness:\n"
        "    def __del__(self, say=print):\n"
        "        say('finalized', flush=True)\n"
        "witness = Witness()\n"
        "end_process(6)\n"
    )
    assert (ended.returncode, ended.stdout) == (6, "finalized\n")


def test_an_unexpected_error_is_printed_and_exits_with_1() -> None:
    ended = end(
        "from potluck.cli import main, process_end\n"
        "def fail(arguments):\n"
        "    process_end.skip_finalization()\n"
        "    raise KeyError('an internal detail')\n"
        "main._run = fail\n"
        "main.main(['up'])\n"
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith("KeyError: 'an internal detail'\n")
