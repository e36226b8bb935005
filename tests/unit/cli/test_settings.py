from pathlib import Path
from typing import Any

import pytest

from potluck.cli import settings as module
from potluck.cli.settings import Settings, unknown_variables
from potluck.errors import UsageError
from potluck.types.choices import ArithmeticChoice, Objective, Rebalance


def read_settings(environ: dict[str, str], home: Path | None) -> Any:
    """Also with the fields of the settings of deployments, which no annotation has."""
    return module.read_settings(environ, home)


def write_config(home: Path, text: str) -> None:
    path = home / ".config" / "potluck" / "config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_nothing_is_set_by_default(tmp_path: Path) -> None:
    assert read_settings({}, tmp_path) == Settings()
    assert read_settings({}, None) == Settings()


def test_the_environment_goes_before_the_file(tmp_path: Path) -> None:
    write_config(tmp_path, 'threads = 2\ncontext = 512\nisa = "avx2"\n')
    settings = read_settings({"POTLUCK_THREADS": "4", "POTLUCK_ISA": "scalar"}, tmp_path)
    assert settings == Settings(threads=4, context=512, isa="scalar")


def test_a_backend_from_the_environment(tmp_path: Path) -> None:
    write_config(tmp_path, 'backend = "native"\nallow_software = true\n')
    assert read_settings({}, tmp_path) == Settings(backend="native", allow_software=True)
    environ = {"POTLUCK_BACKEND": "tinygrad:CL", "POTLUCK_ALLOW_SOFTWARE": "0"}
    assert read_settings(environ, tmp_path) == Settings(backend="tinygrad:CL")


def test_arithmetic(tmp_path: Path) -> None:
    write_config(tmp_path, 'arithmetic = "fast"\n')
    assert read_settings({}, tmp_path).arithmetic is ArithmeticChoice.FAST
    assert (
        read_settings({"POTLUCK_ARITHMETIC": "exact"}, tmp_path).arithmetic
        is ArithmeticChoice.EXACT
    )
    with pytest.raises(UsageError, match="POTLUCK_ARITHMETIC: Invalid enum value 'quick'"):
        read_settings({"POTLUCK_ARITHMETIC": "quick"}, None)


def test_states(tmp_path: Path) -> None:
    write_config(tmp_path, "states = 12\n")
    assert read_settings({}, tmp_path) == Settings(states=12)
    assert read_settings({"POTLUCK_STATES": "1024"}, tmp_path).states == 1024
    for wrong in ("0", "1025", "many"):
        with pytest.raises(UsageError, match="POTLUCK_STATES: "):
            read_settings({"POTLUCK_STATES": wrong}, None)


def test_what_plans_are_made_for(tmp_path: Path) -> None:
    write_config(tmp_path, 'objective = "throughput"\nstreams = 4\nrebalance = "ask"\n')
    assert read_settings({"POTLUCK_STREAMS": "16"}, tmp_path) == Settings(
        objective=Objective.THROUGHPUT, streams=16, rebalance=Rebalance.ASK
    )
    with pytest.raises(UsageError, match="POTLUCK_REBALANCE: Invalid enum value 'soon'"):
        read_settings({"POTLUCK_REBALANCE": "soon"}, None)
    with pytest.raises(UsageError, match="POTLUCK_STREAMS: "):
        read_settings({"POTLUCK_STREAMS": "0"}, None)


def test_units_of_a_group(tmp_path: Path) -> None:
    assert Settings().tensor_parallel == "auto"
    write_config(tmp_path, "tensor_parallel = 4\n")
    assert read_settings({}, tmp_path).tensor_parallel == 4
    assert read_settings({"POTLUCK_TENSOR_PARALLEL": "off"}, tmp_path).tensor_parallel == "off"
    for wrong in ("0", "some", "-1"):
        with pytest.raises(UsageError, match="POTLUCK_TENSOR_PARALLEL: "):
            read_settings({"POTLUCK_TENSOR_PARALLEL": wrong}, None)


def test_xdg_config_home_is_honoured(tmp_path: Path) -> None:
    (tmp_path / "potluck").mkdir()
    (tmp_path / "potluck" / "config.toml").write_text("threads = 3\n")
    assert read_settings({"XDG_CONFIG_HOME": str(tmp_path)}, None) == Settings(threads=3)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("thread = 2", "thread"),
        ('threads = "many"', "threads"),
        ("threads = ", "config.toml"),
        pytest.param("threads = " + "[" * 20_000, "config.toml", id="deep"),
        pytest.param("threads = " + "9" * 4_301, "config.toml", id="huge"),
        ("[threads]\nx = 1", "threads"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, named: str) -> None:
    write_config(tmp_path, text)
    with pytest.raises(UsageError, match=named):
        read_settings({}, tmp_path)


def test_a_bad_variable_is_named() -> None:
    with pytest.raises(UsageError, match="POTLUCK_THREADS"):
        read_settings({"POTLUCK_THREADS": "many"}, None)


def test_variables_of_other_programs_are_no_settings_and_are_listed() -> None:
    environ = {
        "POTLUCK_TREADS": "2",
        "POTLUCK_API_URL": "http://example.org",
        "POTLUCK_THREADS": "2",
        "POTLUCK_SECRET": "s",
        "POTLUCK_STATE": "/x",
        "THREADS": "9",
    }
    assert read_settings(environ, None) == Settings(threads=2)
    assert unknown_variables(environ) == ["POTLUCK_API_URL", "POTLUCK_TREADS"]


def test_a_folder_of_somebody_else_holds_no_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, "threads = 2\n")

    def refuse(_: Path) -> bool:
        raise PermissionError(13, "Permission denied")  # as root, which may all, cannot show it

    monkeypatch.setattr(Path, "is_file", refuse)
    assert read_settings({}, tmp_path) == Settings()


def test_serving(tmp_path: Path) -> None:
    assert (Settings().prefix_cache, Settings().target_step_ms) == (True, 200.0)
    write_config(tmp_path, "prefix_cache = false\ntarget_step_ms = 50\n")
    settings = read_settings({"POTLUCK_TARGET_STEP_MS": "75.5"}, tmp_path)
    assert (settings.prefix_cache, settings.target_step_ms) == (False, 75.5)
    assert Settings().draft == "ngram"
    assert read_settings({"POTLUCK_DRAFT": "off"}, None).draft == "off"
    assert Settings().cache_disk_bytes == 0
    assert read_settings({"POTLUCK_CACHE_DISK_BYTES": "5000"}, None).cache_disk_bytes == 5000
    for name, value in (
        ("PREFIX_CACHE", "perhaps"),
        ("TARGET_STEP_MS", "0"),
        ("TARGET_STEP_MS", "nan"),
        ("TARGET_STEP_MS", "1e9"),
        ("CACHE_DISK_BYTES", "-1"),
    ):
        with pytest.raises(UsageError, match=f"POTLUCK_{name}"):
            read_settings({f"POTLUCK_{name}": value}, None)


def test_recovery(tmp_path: Path) -> None:
    write_config(tmp_path, "recovery_wait_seconds = 20\nspares = 1\n")
    settings = read_settings({"POTLUCK_SPARES": "2"}, tmp_path)
    assert (settings.recovery_wait_seconds, settings.spares) == (20.0, 2)
    for name, value in (
        ("SPARES", "65"),
        ("SPARES", "-1"),
        ("RECOVERY_WAIT_SECONDS", "-1"),
        ("RECOVERY_WAIT_SECONDS", "nan"),
        ("RECOVERY_WAIT_SECONDS", "1e9"),
    ):
        with pytest.raises(UsageError, match=f"POTLUCK_{name}"):
            read_settings({f"POTLUCK_{name}": value}, None)


def test_how_much_the_store_of_weights_may_take(tmp_path: Path) -> None:
    write_config(tmp_path, "weights_store = 5000\n")
    assert read_settings({}, tmp_path) == Settings(weights_store=5000)
    assert read_settings({"POTLUCK_WEIGHTS_STORE": "0"}, tmp_path).weights_store == 0
    with pytest.raises(UsageError, match="POTLUCK_WEIGHTS_STORE: "):
        read_settings({"POTLUCK_WEIGHTS_STORE": "-1"}, None)


@pytest.mark.parametrize("name", ["WEIGHTS_STORE", "PACKED_CACHE_BYTES"])
def test_sizes_that_no_message_can_contain_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"POTLUCK_{name}: "):
        read_settings({f"POTLUCK_{name}": str(2**64)}, None)
