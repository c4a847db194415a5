"""The curriculum of docs/variants.md changes the variants of a run."""

from pathlib import Path

import pytest

from penstock.learning.run.own_curriculum import OwnCurriculum
from penstock.runs.summary import Summary
from tests.docs.pages import ROOT, files_of
from tests.support.services.processes import run

FILES = files_of(ROOT / "docs" / "variants.md")


def test_the_curriculum_adds_a_variant_once_the_hardest_is_solved(tmp_path: Path) -> None:
    (tmp_path / "harder.py").write_text(FILES["harder.py"])
    known = [{"g": 5.0 + number} for number in range(3)]
    curriculum = OwnCurriculum(f"{tmp_path / 'harder.py'}:harder", known, may_change=True)
    unsolved = curriculum.choose(known, [[-200.0] * 20, [-200.0] * 20, [-400.0] * 20], [()] * 3, 0.5)
    assert unsolved.variants == known
    solved = curriculum.choose(known, [[-200.0] * 20] * 3, [()] * 3, 0.5)
    assert solved.variants == [{"g": 6.0}, {"g": 7.0}, {"g": 8.0}]


@pytest.mark.nightly
def test_the_run_of_the_page_plays_harder_variants(tmp_path: Path) -> None:
    (tmp_path / "harder.py").write_text(FILES["harder.py"].replace("> -300.0", "> -3000.0"))
    options = (
        "--env-id=Pendulum-v1 --environment.vary=episodes --sampling.collection=harder.py:harder --total-steps=300000"
    )
    variants = '--environment.variants=[{"g": 5.0}]'
    end = run("train", *options.split(), variants, "--run-dir=run", directory=tmp_path)
    assert end.code == 0, end.stderr
    numbers = [each.number for each in Summary.read(tmp_path / "run" / "summary.json").variants]
    assert len(numbers) == 3 and numbers[0] > 0
