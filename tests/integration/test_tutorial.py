"""The tutorial of docs/first-environment.md: its file and its commands, in its order, lead to a policy that catches."""

import json
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, commands_of
from tests.support.services.processes import Ended, run

pytestmark = pytest.mark.nightly

BLOCKS = blocks(ROOT / "docs" / "first-environment.md")


def test_the_tutorial_leads_from_an_empty_file_to_a_film(tmp_path: Path) -> None:
    (source,) = [block.text for block in BLOCKS if block.language == "python"]
    (tmp_path / "catch.py").write_text(source)
    shell = [block for block in BLOCKS if block.language == "sh"]
    commands = [shlex.split(command) for block in shell for command in commands_of(block.text)]
    said: dict[str, Ended] = {}
    for program, name, *arguments in commands:
        assert program == "penstock"
        end = run(name, *arguments, directory=tmp_path)
        # Doctor may report a fault of this machine.
        assert end.code == 0 or name == "doctor", f"{name}: {end.stdout}{end.stderr}"
        said.setdefault(name, end)
    assert "catch:Catch was created, reset and stepped" in said["doctor"].stdout
    evaluated = json.loads((tmp_path / "catch" / "summary.json").read_text())["evaluation"]
    assert evaluated["return_mean"] >= 0.9
    assert (tmp_path / "catch.mp4").stat().st_size > 1_000
    assert said["evaluate"].stdout.endswith("catch.mp4\n")
    assert (tmp_path / "larger" / "summary.json").exists()
