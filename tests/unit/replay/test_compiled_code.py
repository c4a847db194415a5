"""Where numba may keep what it has compiled."""

import ast
import inspect
import os
from pathlib import Path
from types import ModuleType

import pytest
from numba.core.dispatcher import Dispatcher

from penstock.replay import compiled_code, sum_tree
from penstock.replay.store import header_scans, row_checks


def chosen(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    compiled_code.make_writable()
    return Path(os.environ["NUMBA_CACHE_DIR"])


def test_a_folder_that_can_be_written_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, tmp_path / "new") == tmp_path / "new"


def test_a_folder_that_can_not_be_created_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    folder = chosen(monkeypatch, tmp_path / "file" / "below")
    (folder / "probe").touch()


def test_the_contents_of_a_read_only_folder_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "code.nbi").write_bytes(b"compiled")
    # Root may write everywhere, so the folder itself can't be made to refuse.
    monkeypatch.setattr(compiled_code, "_can_write", lambda folder: False)
    folder = chosen(monkeypatch, tmp_path)
    assert folder != tmp_path
    assert (folder / "code.nbi").read_bytes() == b"compiled"
    assert (folder / "code.nbi").stat().st_mtime_ns == (tmp_path / "code.nbi").stat().st_mtime_ns


def test_without_a_folder_numba_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    compiled_code.make_writable()
    assert "NUMBA_CACHE_DIR" not in os.environ


def test_compiled_code_depends_on_no_other_file() -> None:
    # numba compiles a function again when its own file changes: what it took from another file would be out of date.
    for module in (header_scans, row_checks, sum_tree):
        for function in vars(module).values():
            if isinstance(function, Dispatcher):
                used = inspect.getclosurevars(function.py_func).globals
                assert all(_is_of(module, name, value) for name, value in used.items()), (function, used)


def _is_of(module: ModuleType, name: str, value: object) -> bool:
    if isinstance(value, Dispatcher):
        return bool(value.py_func.__module__ == module.__name__)
    for statement in ast.parse(inspect.getsource(module)).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            # A literal, or what numpy makes of one.
            return {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)} <= {"np"}
    return isinstance(value, ModuleType)
