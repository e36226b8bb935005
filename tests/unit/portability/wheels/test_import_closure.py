"""Which native files importing a wheel loads, read from sources of all sorts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import pytest
from support.portability.elf_bytes import Elf
from support.portability.wheel_bytes import write_wheel

from potluck.portability.checks import needs as needs_module
from potluck.portability.checks.needs import read_needs
from potluck.portability.wheels.import_closure import imported_files, named_strings

CORE = "pack/_core.cpython-311-x86_64-linux-gnu.so"
OTHER = "pack/_other.abi3.so"
LIBRARY = "pack/lib/libpack.so.1"


def imported(
    sources: Mapping[str, str], natives: Mapping[str, bytes] | None = None
) -> tuple[str, ...] | None:
    """The files that are loaded, where each module has one file."""
    found = groups(sources, natives)
    assert found is None or all(len(each) == 1 for each in found)
    return None if found is None else tuple(path for (path,) in found)


def groups(
    sources: Mapping[str, str], natives: Mapping[str, bytes] | None = None
) -> tuple[tuple[str, ...], ...] | None:
    files = natives if natives is not None else {CORE: b"", OTHER: b"", LIBRARY: b""}

    def find(path: str, names: Set[bytes]) -> Set[bytes]:
        return named_strings(files[path], names)

    return imported_files(sources, files, lambda path: sources[path].encode(), find).required


@pytest.mark.parametrize(
    "source",
    [
        "from . import _core",
        "from ._core import f",
        "import pack._core",
        "from pack._core import *",
        "import importlib\nimportlib.import_module('pack._core')",
        "from importlib import import_module\nimport_module('._core', __name__)",
        "try:\n    from . import _core\nexcept ImportError as e:\n    raise E from e",
        "try:\n    from . import _core\nexcept Exception as error:\n    failed = error\n",
        "try:\n    from . import _core\nexcept ImportError as e:\n    failed = f'no core: {e}'",
        "try:\n    from . import _core\nexcept ImportError as e:\n    failed: str = str(e)",
        "try:\n    from . import _core\nexcept ImportError as e:\n    missing.append(f'core: {e}')",
        "try:\n    from . import _core\nexcept ImportError:\n    if f():\n        raise",
        "try:\n    from . import _core\nexcept ImportError:\n    print('no core')\n    sys.exit(1)",
        "try:\n    from . import _core\nexcept ImportError:\n    import _core",
        "try:\n    from . import _core\nexcept ImportError:\n    try:\n        import _core\n"
        "    except ImportError:\n        raise",
        "try:\n    from . import _core\nexcept ModuleNotFoundError:\n    pass",
        "try:\n    from . import _core\nexcept OSError:\n    pass\nexcept Exception:\n    raise",
        "import contextlib\nwith contextlib.suppress(KeyError):\n    from . import _core",
        "try:\n    from . import _core\nfinally:\n    pass",
        "class A:\n    from . import _core",
        "with open('x') as file:\n    from . import _core",
        "if f():\n    pass\nelse:\n    from . import _core",
        "for each in ():\n    from . import _core",
    ],
)
def test_what_a_module_imports_when_it_is_executed(source: str) -> None:
    assert imported({"pack/__init__.py": source}) == (CORE,)


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    from . import _core",
        "try:\n    from . import _core\nexcept ImportError:\n    pass",
        "try:\n    from . import _core\nexcept (ImportError, OSError):\n    _core = None",
        "try:\n    from . import _core\nexcept:\n    pass",
        "try:\n    from . import _core\nexcept ImportError:\n    from ._slow import f",
        "try:\n    from .fast.core import f\n    from . import _core\n"
        "except ImportError:\n    from .slow.core import f",
        "try:\n    from . import _core\nexcept ImportError:\n    try:\n"
        "        from ._slow import f\n    except ImportError:\n        raise",
        "try:\n    from . import _core\nexcept ImportError as e:\n    logger.warning('no: %s', e)",
        "try:\n    from . import _core\nexcept ImportError:\n    import warnings\n"
        "    warnings.warn('slow')",
        "try:\n    from . import _core\nexcept Exception as e:\n    message = f'no core: {e}'\n"
        "    warnings.warn(message)\n    HAS_CORE = False",
        "try:\n    from . import _core\nexcept ImportError:\n    def f():\n        raise Missing",
        "try:\n    from . import _core\nexcept ImportError:\n    pass\nexcept OSError:\n    raise",
        "import contextlib\nwith contextlib.suppress(ImportError):\n    from . import _core",
        "with suppress(KeyError, ImportError):\n    from . import _core",
        "if TYPE_CHECKING:\n    from . import _core",
        "import typing\nif typing.TYPE_CHECKING:\n    from . import _core",
        "import sys\nif sys.platform == 'win32':\n    from . import _core",
        "import sys\nif sys.platform.startswith('win'):\n    from . import _core",
        "if __name__ == '__main__':\n    from . import _core",
    ],
)
def test_what_is_left_to_when_it_is_used(source: str) -> None:
    assert imported({"pack/__init__.py": f"from . import _other\n{source}"}) == (OTHER,)


def test_a_replacement_is_imported() -> None:
    source = "try:\n    from . import _core\nexcept ImportError:\n    from . import _other"
    assert imported({"pack/__init__.py": source}) == (OTHER,)


def test_importing_loads_nothing_for_certain_where_it_tolerates_all_failures() -> None:
    source = "try:\n    from . import _core\nexcept ImportError:\n    _core = None"
    assert imported({"pack/__init__.py": source}) == ()
    assert imported({"pack/__init__.py": source, "pack/a.py": "from . import _other"}) == (OTHER,)


def test_imports_are_followed_through_modules_and_parents() -> None:
    sources = {
        "pack/__init__.py": "from .deep.down import f",
        "pack/deep/__init__.py": "from .. import _other",
        "pack/deep/down.py": "from ..elsewhere import f",
        "pack/elsewhere.py": "from ._core import f",
        "pack/unused.py": "from .lib import libpack",
    }
    assert imported(sources) == (CORE, OTHER)


def test_an_extension_module_imports_those_that_it_names() -> None:
    natives = {CORE: b"\0pack._other\0", OTHER: b"", "pack/_others.so": b""}
    assert imported({"pack/__init__.py": "from . import _core"}, natives) == (CORE, OTHER)


def test_several_files_of_one_module_are_alternatives() -> None:
    mpich = "pack/MPI.mpich.cpython-311-x86_64-linux-gnu.so"
    openmpi = "pack/MPI.openmpi.cpython-311-x86_64-linux-gnu.so"
    natives = {openmpi: b"\0pack._other\0", mpich: b"", OTHER: b"", "pack/unused.so": b""}
    source = {"pack/__init__.py": "from . import MPI"}
    assert groups(source, natives) == ((mpich, openmpi), (OTHER,))


def test_a_docstring_that_names_an_extension_module_imports_nothing() -> None:
    natives = {CORE: b"\0plan (:class:`~pack._other.Plan`)\0", OTHER: b""}
    assert imported({"pack/__init__.py": "from . import _core"}, natives) == (CORE,)


@pytest.mark.parametrize("name", ["libpack.so.1", "pack", "dir/libpack.so.1"])
def test_a_library_is_opened_by_a_module_that_names_it(name: str) -> None:
    sources = {
        "pack/__init__.py": "from .binding import load",
        "pack/binding.py": f"import ctypes\nfrom .where import PATH\nctypes.CDLL({name!r})",
        "pack/where.py": "PATH = 1",
    }
    assert imported(sources) == (LIBRARY,)


@pytest.mark.parametrize("name", ["f'libpack{SUFFIX}'", "f'{HERE}/libpack.so.1'"])
def test_a_library_is_opened_by_a_name_that_is_completed(name: str) -> None:
    assert imported({"pack/__init__.py": f"import ctypes\nctypes.CDLL({name})"}) == (LIBRARY,)


def test_a_message_about_a_library_does_not_open_it() -> None:
    source = "import ctypes\nfrom . import _core\nprint('libpack.so.1: cannot open')"
    assert imported({"pack/__init__.py": source}) == (CORE,)


OPENING = "import ctypes\ndef f():\n    return ctypes.CDLL('libpack.so.1')\n"


@pytest.mark.parametrize(
    ("source", "is_required"),
    [
        (f"{OPENING}x = f()", True),
        (f"{OPENING}try:\n    x = f()\nexcept OSError as e:\n    failed = e", True),
        (f"{OPENING}try:\n    x = f()\nexcept OSError:\n    x = None\ng(f)", True),
        (f"{OPENING}try:\n    x = f()\nexcept OSError:\n    x = None", False),
        (f"{OPENING}try:\n    x = f()\nexcept Exception as e:\n    logger.error(e)", False),
        ("import ctypes\ntry:\n    ctypes.CDLL('libpack.so.1')\nexcept OSError:\n    pass", False),
        ("import ctypes\nwith suppress(OSError):\n    ctypes.CDLL('libpack.so.1')", False),
    ],
)
def test_a_library_that_need_not_open(source: str, is_required: bool) -> None:
    assert imported({"pack/__init__.py": source}) == ((LIBRARY,) if is_required else ())


def test_nobody_opens_libraries_without_ctypes() -> None:
    assert imported({"pack/__init__.py": "NAME = 'libpack.so.1'\nfrom . import _core"}) == (CORE,)


def test_where_the_package_itself_loads_nothing_its_modules_count() -> None:
    sources = {
        "pack/__init__.py": "",
        "pack/use.py": "from . import _core",
        "pack/tests/test_use.py": "from .. import _other",
    }
    assert imported(sources) == (CORE,)


def test_a_top_level_extension_module_is_imported() -> None:
    assert imported({}, {"pack.cpython-311-x86_64-linux-gnu.so": b"", LIBRARY: b""}) == (
        "pack.cpython-311-x86_64-linux-gnu.so",
    )


@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"pack/__init__.py": "print('nothing')"},
        {"pack/__init__.py": "this is no Python"},
        {"pack/__init__.py": "x = " + "(" * 3000},
        {"pack/__init__.py": "\0"},
        {"../../../bin/run.py": "import pack._core"},
        {"name with spaces/__init__.py": "import pack._core"},
    ],
)
def test_nothing_is_known_where_no_import_is_found(sources: Mapping[str, str]) -> None:
    assert imported(sources, {LIBRARY: b""}) is None


def test_modules_that_import_one_another_end() -> None:
    sources = {
        "pack/__init__.py": "from . import a",
        "pack/a.py": "import pack\nfrom . import _core",
    }
    assert imported(sources) == (CORE,)


def test_deep_nesting_ends() -> None:
    lines = [f"{' ' * depth}if f():" for depth in range(90)]
    source = "from . import _core\n" + "\n".join([*lines, f"{' ' * 90}from . import _other"])
    assert imported({"pack/__init__.py": source}) == (CORE,)


def test_nested_attempts_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"import ctypes\ntry:\n  a{'()' * 300}\nexcept ImportError: pass"
    children, num_walked = ast.iter_child_nodes, 0

    def count(node: ast.AST) -> Iterator[ast.AST]:
        nonlocal num_walked
        num_walked += 1
        return children(node)

    monkeypatch.setattr(ast, "iter_child_nodes", count)
    imported({"pack/__init__.py": source})
    assert num_walked < 20 * 300


def test_a_wheel_is_read_where_its_files_get_installed(tmp_path: Path) -> None:
    broken = b"\x7fELF" + b"\0" * 60
    path = write_wheel(
        tmp_path,
        {
            "pack-1.0.data/purelib/pack/__init__.py": b"from . import _core",
            CORE: broken,
            OTHER: broken,
        },
    )
    assert read_needs(path).imported == ((CORE,),)


def test_a_source_that_is_too_large_is_passed_over(tmp_path: Path) -> None:
    broken = b"\x7fELF" + b"\0" * 60
    members = {"pack/__init__.py": b"from . import _core\n" + b"#" * (4 << 20), CORE: broken}
    assert read_needs(write_wheel(tmp_path, members)).imported is None


def test_what_a_wheel_attempts_to_import_is_read_if_it_may_abort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = b"try:\n    from . import _core\nexcept ImportError:\n    pass\nfrom . import _other"
    elf = Elf().build()
    path = write_wheel(tmp_path, {"pack/__init__.py": source, CORE: elf, OTHER: elf})
    needs = read_needs(path)
    assert (needs.imported, needs.attempted) == (((OTHER,),), frozenset())
    monkeypatch.setattr(needs_module, "jemalloc_page_bytes", lambda data: 0x1000)
    needs = read_needs(path)
    assert (needs.imported, needs.attempted) == (((OTHER,),), frozenset({CORE, OTHER}))
