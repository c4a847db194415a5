"""Result files of stress programs, and the page that shows them."""

import ast
import json
import sys
from pathlib import Path

import pytest

from stress import results, tables
from tests.support.results.provenance import ROOT

PROGRAMS = [
    path
    for path in sorted((ROOT / "stress").glob("*.py"))
    if (ast.get_docstring(ast.parse(path.read_text())) or "").startswith("`make ")
]


def test_the_page_is_current() -> None:
    text = tables.PAGE.read_text()
    assert tables.with_parts(text) == text, "run python -m stress.tables"


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has no marks for 'promises'"):
        tables.with_parts("# Benchmarks")


def test_a_result_that_does_not_exist_is_not_measured(tmp_path: Path) -> None:
    for part in tables.PARTS.values():
        assert "not measured" in part(tmp_path)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_every_program_writes_its_result_with_its_provenance(path: Path) -> None:
    text = path.read_text()
    assert "results.options(__doc__)" in text and "results.write(" in text
    parser = results.options(ast.get_docstring(ast.parse(text)))
    assert parser.parse_args([]).output.name == f"{path.stem}.json"


def test_a_result_begins_with_its_command_and_provenance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "grid.json"
    words = ["--seed", "3", "--output", str(path), "--kinds", "a b"]
    parser = results.options("`make stress-grid`: trains.")
    parser.add_argument("--seed")
    parser.add_argument("--kinds")
    monkeypatch.setattr(sys, "argv", ["stress.grid", *words])
    results.write(parser.parse_args(words), {"found": 1})
    found = json.loads(path.read_text())
    assert list(found) == ["machine", "commit", "python", "packages", "date", "command", "took_s", "found"]
    assert found["command"] == "make stress-grid ARGS='--seed 3 --kinds '\"'\"'a b'\"'\"''"
    assert results.command_of("stress-grid", [f"--output={path}"]) == "make stress-grid"
