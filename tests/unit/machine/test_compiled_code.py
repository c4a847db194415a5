"""Tests the choice of the folder in which numba caches compiled code."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest
from numba.core.dispatcher import Dispatcher

from penstock.algo import advantages
from penstock.machine import compiled_code
from penstock.replay import masses, sum_tree
from penstock.replay.store import header_scans, lz4_blocks, row_checks, segment_rows
from penstock.small.compiled import adam, estimates, gradients, losses, passes, row_losses
from tests.support.machine.timing import PATIENCE_S
from tests.support.services.processes import WITH_HELPERS


@pytest.fixture(autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))


def chosen(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    compiled_code.make_writable()
    return Path(os.environ["NUMBA_CACHE_DIR"])


def test_a_writable_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, tmp_path / "new") == tmp_path / "new"


def test_numba_chooses_in_place_of_a_folder_that_cannot_be_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    compiled_code.make_writable()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_a_folder_that_cannot_be_created_is_replaced_if_the_installation_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    # Root can write to every folder, so the test simulates a read-only one.
    monkeypatch.setattr(compiled_code, "_can_write", lambda folder: False)
    folder = chosen(monkeypatch, tmp_path / "file" / "below")
    (folder / "probe").touch()


def test_the_contents_of_a_read_only_folder_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.nbi").write_bytes(b"compiled")
    # Root can write to every folder, so the test simulates a read-only one.
    monkeypatch.setattr(compiled_code, "_can_write", lambda folder: False)
    folder = chosen(monkeypatch, tmp_path)
    assert folder != tmp_path
    assert (folder / "code.nbi").read_bytes() == b"compiled"
    assert (folder / "code.nbi").stat().st_mtime_ns == (tmp_path / "code.nbi").stat().st_mtime_ns


def test_without_a_configured_folder_numba_chooses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    compiled_code.make_writable()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_torch_keeps_compiled_code_where_no_other_user_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Restored after the test, in which the function sets it.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compiled_code.keep_private()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder == tmp_path / "cache" / "penstock" / "compiled" and folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/chosen")
    compiled_code.keep_private()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/chosen"
    # Without a folder of the user, a new one is made; never one with a name that others can foresee.
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiled_code.keep_private()
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()


USED = {gradients: (passes, row_losses)}
"""Modules whose functions a module compiles into its own."""


def test_cached_code_depends_on_no_other_file_than_its_name_tells() -> None:
    # numba recompiles a function only when its own file changes, not when another file that it uses changes.
    compiled = (
        adam,
        advantages,
        estimates,
        gradients,
        losses,
        header_scans,
        lz4_blocks,
        masses,
        passes,
        row_losses,
        segment_rows,
        row_checks,
        sum_tree,
    )
    for module in compiled:
        for function in vars(module).values():
            if isinstance(function, Dispatcher) and function.py_func.__module__ == module.__name__:
                others, python = _sources(function) - {module}, function.py_func
                assert others <= {*USED.get(module, ())}, (function, others)
                # A function that is not cached is compiled into another one.
                if function.stats.cache_path is not None:
                    name = f"{python.__name__}_{compiled_code.digest_of(USED[module])}" if others else python.__name__
                    assert python.__qualname__ == name, function


def test_code_is_compiled_again_only_after_a_change_of_a_module_that_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    # A compiled file of Python would hide a change within a second.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "own_code.py").write_text(
        "import numba\nimport used_code\nfrom penstock.machine.compiled_code import using\n\n"
        "@numba.njit('int64()', cache=True)\n@using(used_code)\ndef call():\n    return used_code.value()\n"
    )
    found = []
    for value in (1, 1, 2, 2):
        (tmp_path / "used_code.py").write_text(f"import numba\n\n@numba.njit\ndef value():\n    return {value}\n")
        for name in ("own_code", "used_code"):
            sys.modules.pop(name, None)
        call = importlib.import_module("own_code").call
        found.append((call(), sum(call.stats.cache_hits.values())))
    assert found == [(1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.mark.nightly
def test_another_process_finds_the_compiled_code_of_small_networks() -> None:
    """The modules were imported here, so that their code is in the cache. Signatures have records of this package."""
    script = (
        "from numba.core.dispatcher import Dispatcher\n"
        "from penstock.small.compiled import adam, estimates, gradients, losses, passes, row_losses\n"
        "modules = (adam, estimates, gradients, losses, passes, row_losses)\n"
        "functions = [each for module in modules for each in vars(module).values()]\n"
        "print(sum(sum(each.stats.cache_misses.values()) for each in functions if isinstance(each, Dispatcher)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
        env=os.environ | WITH_HELPERS,
    )
    assert ended.stdout == "0\n"


def _sources(function: Dispatcher) -> set[ModuleType]:
    """Returns the modules whose text decides what a function is compiled to."""
    module = sys.modules[function.py_func.__module__]
    found = {module}
    for name, value in inspect.getclosurevars(function.py_func).globals.items():
        if isinstance(value, Dispatcher):
            found |= _sources(value)
        elif not _is_of(module, name, value):
            found.add(_origin(module, name))
    return found


def _origin(module: ModuleType, name: str) -> ModuleType:
    """Returns the module that defines a name which `module` imports from there."""
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
            origin = sys.modules[str(statement.module)]
            assert _is_of(origin, name, getattr(origin, name)), (module, name)
            return origin
    raise AssertionError(f"{module.__name__} does not import {name}")


def _is_of(module: ModuleType, name: str, value: object) -> bool:
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            # A literal, or a numpy value made from a literal.
            return {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)} <= {"np"}
        if isinstance(statement, ast.FunctionDef | ast.ClassDef) and statement.name == name:
            return True
    return isinstance(value, ModuleType)
