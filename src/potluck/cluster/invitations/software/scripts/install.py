"""Install Potluck from the node that invited this machine, and join its cluster.

The node fills in ENDPOINT and sends this file; the line that was typed runs it. It needs only the
standard library, and parses on Python 3.6, so that it can report there that 3.11 is required.

Options: --service (keep the node running as a systemd user service), --no-start (only install); all
others are for `potluck up`.
"""

import hashlib
import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, NoReturn, Optional

ENDPOINT: Dict[str, Any] = {}

OLDEST = (3, 11)
PIECE_BYTES = 1 << 18
SILENCE_SECONDS = 300.0
ROOM = 5  # times the bytes of the wheels: the wheels themselves and what they unpack to


def main(arguments: List[str]) -> None:
    """Install, and start what the options say."""
    if sys.version_info < OLDEST:
        run_with_newer_python()
    os.umask(0o022)
    with_service = "--service" in arguments
    is_started = "--no-start" not in arguments
    rest = [each for each in arguments if each not in ("--service", "--no-start")]
    program = install()
    if not is_started:
        say(f"installed: {program}")
        return
    # Not as an argument, which all users of this machine can see.
    os.environ["POTLUCK_INVITATION"] = ENDPOINT["invitation"]
    command = ["service", "install", "--"] if with_service else ["up"]
    sys.stdout.flush()
    os.execv(str(program), [str(program), *command, *rest])


def install() -> Path:
    """Install what the node chooses for this machine; return the path of `potluck`."""
    folder = base_folder("XDG_DATA_HOME", ".local/share")
    wheels = base_folder("XDG_CACHE_HOME", ".cache") / "wheels"
    for each in (folder, wheels):
        each.mkdir(parents=True, exist_ok=True)
    say("describing this machine")
    chosen = choose(describe())
    files = chosen["wheels"]
    digest = hashlib.sha256("".join(sorted(each["sha256"] for each in files)).encode())
    place = folder / "{}-{}".format(chosen["version"], digest.hexdigest()[:12])
    program = place / "bin" / "potluck"
    if not (place / ".complete").exists():
        check_room(folder, sum(each["bytes"] for each in files))
        for number, each in enumerate(files, start=1):
            fetch(each, wheels, f"{number} of {len(files)}")
        say(f"installing to {place}")
        make_environment(place, files, wheels)
        run([str(program), "--version"])
        (place / ".complete").touch()
    remove_older(folder, place)
    link(place, folder / "current")
    link_program(folder / "current" / "bin" / "potluck")
    return folder / "current" / "bin" / "potluck"


def run_with_newer_python() -> NoReturn:
    """Run the same line with a newer Python of this machine, or report that there is none."""
    for minor in range(OLDEST[1], OLDEST[1] + 10):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.call([found, "-c", "import ssl, venv"], env=own_environment()) == 0:
            line = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
            os.execv(found, [found.encode(), *line[1:]])
    fail(
        "Potluck needs Python {}.{} or newer, and this is {}.{}".format(
            *(OLDEST + sys.version_info[:2])
        ),
        f"install it ({newer_python_hint()}), then type the same line again",
    )


def newer_python_hint() -> str:
    """Return how to install a newer Python on this system."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    values = dict(line.replace('"', "").partition("=")[::2] for line in lines)
    system = (values.get("ID", ""), values.get("VERSION_ID", "").partition(".")[0])
    known = {
        ("ubuntu", "22"): "sudo apt install python3.11 python3.11-venv",
        ("rhel", "8"): "sudo dnf install python3.11",
        ("rhel", "9"): "sudo dnf install python3.11",
        ("rocky", "8"): "sudo dnf install python3.11",
        ("rocky", "9"): "sudo dnf install python3.11",
        ("almalinux", "8"): "sudo dnf install python3.11",
        ("almalinux", "9"): "sudo dnf install python3.11",
        ("amzn", "2023"): "sudo dnf install python3.11",
    }
    return known.get(system, "such as with `uv python install 3.12`, see https://docs.astral.sh/uv")


class Server:
    """The inviting node, verified by the digest of its certificate before anything is sent."""

    def __init__(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["http/1.1"])
        host, port = ENDPOINT["host"], ENDPOINT["port"]
        self._connection = http.client.HTTPSConnection(
            host, port, timeout=SILENCE_SECONDS, context=context
        )
        try:
            self._connection.connect()
        except OSError as error:
            fail(f"no answer from {host}:{port}: {error}", "check that the node is still running")
        certificate = self._connection.sock.getpeercert(True) or b""
        if hashlib.sha256(certificate).hexdigest() != ENDPOINT["certificate_sha256"]:
            fail("the server is not the one that made the invitation")

    def ask(self, method: str, name: str, body: Optional[bytes] = None) -> http.client.HTTPResponse:
        """Return the answer, if it has status 200."""
        path = "/join/{}/{}".format(ENDPOINT["token"], name)
        try:
            self._connection.request(method, path, body=body)
            answer = self._connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            fail(f"the node closed the connection: {problem}", "see the log of the node")
        if answer.status != 200:
            try:
                error = json.loads(answer.read(10000).decode())["error"]
                fail(error["message"], error["hint"])
            except (KeyError, TypeError, ValueError):
                fail(f"the node answered with status {answer.status} {answer.reason}")
        return answer


def describe() -> bytes:
    """Return a JSON document about this machine with what decides which builds load."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "describe.pyz")
        program.write_bytes(Server().ask("GET", "describe.pyz").read())
        return run([sys.executable, "-I", str(program)])


def choose(description: bytes) -> Dict[str, Any]:
    """Return the wheels for this machine; the node reports progress if it has to download them
    first.
    """
    for line in Server().ask("POST", "software", description):
        message = json.loads(line.decode())
        if "error" in message:
            fail(message["error"], message.get("hint", ""))
        if "note" in message:
            say(message["note"])
        if "wheels" in message:
            return dict(message)
    fail(
        "the node stopped while it was choosing the software",
        "see the log of the node, and type the line again",
    )


def check_room(folder: Path, num_bytes: int) -> None:
    """Fail if wheels of this many bytes would not fit here."""
    free = shutil.disk_usage(str(folder)).free
    if free < ROOM * num_bytes:
        fail(
            f"{folder} has {free // 10**6} MB free, but {ROOM * num_bytes // 10**6} MB are needed",
            "free some space, or set XDG_DATA_HOME and XDG_CACHE_HOME to another disk",
        )


def fetch(wheel: Dict[str, Any], folder: Path, number: str) -> None:
    """Download a wheel to the folder; resume an earlier download."""
    path = folder / wheel["name"]
    if path.exists() and digest_of(path) == wheel["sha256"]:
        return
    part = folder / (wheel["name"] + ".part")
    offset = part.stat().st_size if part.exists() else 0
    if offset >= wheel["bytes"]:
        offset = 0
    answer = Server().ask("GET", "wheels/{sha256}/{0}/{name}".format(offset, **wheel))
    with part.open("ab" if offset else "wb") as file:
        for piece in pieces(answer):
            file.write(piece)
            show("downloading {}: {} ({:.0f} MB)".format(number, wheel["name"], file.tell() / 1e6))
    show("")
    if digest_of(part) != wheel["sha256"]:
        part.unlink()
        fail(
            "{} is damaged: its SHA-256 differs from the one that the node gave".format(
                wheel["name"]
            ),
            "type the same line again",
        )
    part.replace(path)


def pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the body of an answer."""
    while True:
        try:
            piece = answer.read(PIECE_BYTES)
        except (OSError, http.client.HTTPException) as error:
            fail(f"the connection was lost: {error}", "type the same line again to resume")
        if not piece:
            return
        yield piece


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(PIECE_BYTES), b""):
            digest.update(piece)
    return digest.hexdigest()


def make_environment(place: Path, files: List[Dict[str, Any]], wheels: Path) -> None:
    """Create a virtual environment with the wheels, using the pip among them: the system needs
    none.
    """
    try:
        import venv
    except ImportError:
        fail(
            "this Python has no venv module",
            "install it (Debian, Ubuntu: sudo apt install python3-venv), then type the line again",
        )
    venv.EnvBuilder(symlinks=True, clear=True).create(str(place))
    required = place / "requirements.txt"
    required.write_text(
        "".join(
            "{} --hash=sha256:{}\n".format((wheels / each["name"]).as_uri(), each["sha256"])
            for each in files
        )
    )
    pip = next(str(wheels / each["name"]) for each in files if each["project"] == "pip")
    python = str(place / "bin" / "python")
    run(
        [
            python,
            pip + "/pip",
            "--isolated",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--no-index",
            "--no-deps",
            "--no-cache-dir",
            "--require-hashes",
            "-r",
            str(required),
        ]
    )


def run(command: List[str]) -> bytes:
    """Return what the command prints. If it fails, show its error output."""
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=own_environment()
    )
    if done.returncode != 0:
        fail("{} failed with status {}".format(" ".join(command[:3]), done.returncode))
    return done.stdout


def own_environment() -> Dict[str, str]:
    """Return the environment without variables that make Python or pip look elsewhere."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))
    }


def base_folder(variable: str, default: str) -> Path:
    """Return Potluck's folder of a kind, by the XDG base directory specification."""
    base = os.environ.get(variable, "")
    return (Path(base) if base.startswith("/") else Path.home() / default) / "potluck"


def remove_older(folder: Path, place: Path) -> None:
    """Remove earlier installations except for the latest: a node may run from that."""
    kept = {place.name, (folder / "current").resolve().name}
    for each in folder.iterdir():
        if each.name not in kept and not each.is_symlink() and (each / "pyvenv.cfg").exists():
            shutil.rmtree(str(each), ignore_errors=True)


def link(target: Path, path: Path) -> None:
    """Make `path` a link to `target`, replacing an existing link."""
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(path)


def link_program(program: Path) -> None:
    """Put `potluck` where shells look for programs, unless there is another one."""
    folder = Path.home() / ".local" / "bin"
    path = folder / "potluck"
    if not path.exists() or (path.is_symlink() and os.readlink(str(path)) == str(program)):
        folder.mkdir(parents=True, exist_ok=True)
        link(program, path)
    if str(folder) not in os.environ.get("PATH", "").split(":"):
        say(f"the command is {path}; its folder is not in PATH")


def say(text: str) -> None:
    """Print a message for the user."""
    print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Show progress in place of the last line, on a terminal."""
    if sys.stderr.isatty():
        print("\r\033[K" + text, end="", file=sys.stderr, flush=True)


def fail(message: str, hint: str = "") -> NoReturn:
    """Exit with a line that says why, and one that says what to do."""
    show("")
    say("error: " + message)
    if hint:
        say("hint: " + hint)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
