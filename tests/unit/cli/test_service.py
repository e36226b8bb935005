"""``potluck service`` with a systemctl and a loginctl that note what they are told."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.schemas import validate_document

from potluck.cli import own_identity, service
from potluck.cli.main import main
from potluck.cli.service import unit_text
from potluck.errors import UsageError

INVITATION = f"10.0.0.7:7333/{'0123456789ABCDEFGHJKMNPQRSTVWXYZ'}/{'A' * 43}"
SYSTEMCTL = """\
#!/bin/sh
echo "$*" >>"$PLAYED/calls"
case "$2" in
show-environment) [ ! -e "$PLAYED/no-manager" ] || { echo 'No medium found' >&2; exit 1; } ;;
restart) if [ -e "$PLAYED/broken" ]; then echo failed; else echo active; fi >"$PLAYED/active" ;;
disable) rm -f "$PLAYED/active" ;;
is-active) cat "$PLAYED/active" 2>/dev/null || { echo inactive; exit 3; } ;;
is-enabled) if [ -e "$PLAYED/active" ]; then echo enabled; else echo disabled; exit 1; fi ;;
esac
"""
LOGINCTL = '#!/bin/sh\ncat "$PLAYED/linger" 2>/dev/null || echo no\n'


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what systemd has been told; HOME is beside it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("loginctl", LOGINCTL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    folder = tmp_path / "played"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("PLAYED", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CONFIG_HOME", "POTLUCK_SECRET", "POTLUCK_INVITATION", "POTLUCK_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(service, "_START_SECONDS", 0.0)
    return folder


def unit(tmp_path: Path) -> Path:
    return tmp_path / "home/.config/systemd/user/potluck.service"


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["service", *arguments])
    return int(ended.value.code or 0)


def command_of(path: Path) -> str:
    (line,) = (each for each in path.read_text().splitlines() if each.startswith("ExecStart="))
    return line.removeprefix("ExecStart=")


def test_a_unit_is_installed_shown_and_removed(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("status") == 1
    assert "install it with potluck service install" in capsys.readouterr().out
    assert run("install", "--", "--lan", "--no-http", "--threads", "3") == 0
    assert "loginctl enable-linger" in capsys.readouterr().err
    assert command_of(unit(tmp_path)).endswith('"up" "--lan" "--no-http" "--threads" "3"')
    calls = [each for each in (played / "calls").read_text().splitlines() if "is-" not in each]
    assert calls[-3:] == [
        "--user daemon-reload",
        "--user enable potluck.service",
        "--user restart potluck.service",
    ]
    (played / "linger").write_text("yes\n")
    assert run("status", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    validate_document(shown)
    assert shown["unit"] == str(unit(tmp_path))
    assert (shown["active"], shown["enabled"], shown["is_lingering"]) == ("active", "enabled", True)
    assert run("remove") == 0
    assert not unit(tmp_path).exists()
    assert "--user disable --now potluck.service" in (played / "calls").read_text()
    assert run("remove") == 2


def test_an_invitation_is_used_and_does_not_get_into_the_unit(
    played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined = []

    def join_identity(options: own_identity.JoinOptions, *_: object, **__: object) -> None:
        joined.append(str(options.invitation))

    monkeypatch.setattr(own_identity, "join_identity", join_identity)
    state = tmp_path / "state"
    assert run("install", "--", "--state", str(state), "--join", INVITATION, "--no-http") == 0
    assert command_of(unit(tmp_path)).endswith(f'"up" "--state" "{state}" "--no-http"')
    assert run("install", "--", "--state", str(state), f"--join={INVITATION}") == 0
    assert command_of(unit(tmp_path)).endswith(f'"up" "--state" "{state}"')
    monkeypatch.setenv("POTLUCK_INVITATION", INVITATION)
    assert run("install", "--", "--state", str(state), "--join", "10.0.0.8:7333") == 0
    assert joined == [INVITATION] * 3
    assert command_of(unit(tmp_path)).endswith(f'"--state" "{state}" "--join" "10.0.0.8:7333"')
    assert INVITATION.split("/")[1] not in unit(tmp_path).read_text()


def test_a_service_uses_the_same_folders_as_the_command_that_installs_it(
    played: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("install", "--", "--lan", "--api-key-file", "keys") == 2
    stderr = capsys.readouterr().err
    assert "--api-key-file keys: a service needs an absolute path" in stderr
    assert f"hint: give {tmp_path / 'keys'}" in stderr
    state = tmp_path / "state"
    monkeypatch.setenv("POTLUCK_STATE", str(state))
    assert run("install", "--", "--lan") == 0
    assert command_of(unit(tmp_path)).endswith(f'"up" "--state" "{state}" "--lan"')
    assert run("install", "--", "--state=/other", "--lan") == 0
    assert command_of(unit(tmp_path)).endswith('"up" "--state=/other" "--lan"')


def test_wrong_options_and_secrets_in_the_environment_are_refused(
    played: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert run("install", "--", "--no-such-option") == 2
    assert run("install", "--", "--new-node-id") == 2
    assert "a new id at every start" in capsys.readouterr().err
    monkeypatch.setenv("POTLUCK_SECRET", "potluck-secret")
    assert run("install", "--", "--lan") == 2
    stderr = capsys.readouterr().err
    assert "--secret-file FILE" in stderr
    assert "potluck-secret" not in stderr
    assert not unit(tmp_path).exists()


def test_a_node_that_does_not_stay_up_is_reported(
    played: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (played / "broken").touch()
    assert run("install", "--", "--lan") == 1
    stderr = capsys.readouterr().err
    assert "the service did not stay up: it is failed" in stderr
    assert "journalctl --user --unit potluck" in stderr


@pytest.mark.parametrize("command", ["status", "remove", "install"])
def test_a_user_without_a_home_has_no_service(
    played: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert run(command) == 2
    assert "there is no home directory for the unit\nhint: set HOME" in capsys.readouterr().err


def test_where_no_manager_runs_it_says_so(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (played / "no-manager").touch()
    assert run("install", "--", "--lan") == 2
    stderr = capsys.readouterr().err
    assert "systemd runs no user manager for" in stderr
    assert "No medium found" in stderr
    assert "enable-linger" in stderr
    assert not unit(tmp_path).exists()


def test_where_no_manager_runs_the_service_does_not_run(
    played: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (played / "no-manager").touch()
    assert run("status") == 1
    out, err = capsys.readouterr()
    assert out == "the service is not installed; install it with potluck service install\n"
    assert "systemd runs no user manager for" in err
    unit(tmp_path).parent.mkdir(parents=True)
    unit(tmp_path).touch()
    assert run("status") == 1
    assert capsys.readouterr().out == f"{unit(tmp_path)}: unknown, unknown\n"
    assert run("status", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    validate_document(shown)
    assert (shown["unit"], shown["active"]) == (str(unit(tmp_path)), "unknown")


def test_where_there_is_no_systemd_it_says_so(
    played: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert run("install", "--", "--lan") == 2
    assert "systemd is not available on this machine" in capsys.readouterr().err


def test_arguments_are_quoted_as_systemd_reads_them() -> None:
    text = unit_text(["/opt/a b/potluck", "up", "--state", '/x/100%"$HOME\\'])
    assert command_line(text) == (
        'ExecStart="/opt/a b/potluck" "up" "--state" "/x/100%%\\"$$HOME\\\\"'
    )
    with pytest.raises(UsageError, match="cannot contain"):
        unit_text(["potluck", "a\nExecStartPre=b"])


def command_line(text: str) -> str:
    return next(each for each in text.splitlines() if each.startswith("ExecStart="))


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("not shown: there is no systemd-analyze")
    path = tmp_path / "potluck.service"
    path.write_text(unit_text(["/bin/sh", "-c", "exit 0 # 100% $HOME"]))
    done = subprocess.run(
        [program, "--user", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert "potluck.service" not in done.stderr, done.stderr
