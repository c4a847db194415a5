"""The losses of docs/change-the-algorithm.md are short, and train a run as the page has them."""

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

import penstock
from penstock.config import build
from penstock.machine.module_imports import import_named
from penstock.runs.metrics import tag_of
from tests.docs.pages import ROOT, blocks
from tests.support.training.single_process import train
from tests.support.training.training import make_batch, make_learner, same_parameters

PAGE = ROOT / "docs" / "change-the-algorithm.md"
FILES = {
    found[1]: block.text
    for block in blocks(PAGE)
    if block.language == "python" and (found := re.match(r'"""(\w+\.py)"""\n', block.text))
}
LOSSES = {"dual_clip.py": "dual_clip", "symlog_values.py": "SymlogValues"}
STATISTICS = {"dual_clip.py": "bounded_share", "symlog_values.py": "largest_target"}


def written(file: str, folder: Path, text: str | None = None) -> str:
    """Writes the example of this name, and returns the name of its loss."""
    (folder / file).write_text(text or FILES[file])
    return f"{folder / file}:{LOSSES[file]}"


def test_the_page_has_these_examples_of_at_most_40_lines() -> None:
    assert FILES.keys() == LOSSES.keys()
    for text in FILES.values():
        assert len(text.splitlines()) <= 40
    commands = [block.text for block in blocks(PAGE) if block.language == "sh"]
    for file, name in LOSSES.items():
        assert any(f"--learner.loss {file}:{name}\n" in command for command in commands)


@pytest.mark.parametrize("file", LOSSES)
def test_an_example_trains_a_run_and_its_statistics_are_in_the_records(file: str, tmp_path: Path) -> None:
    config = build(
        {
            "learner": {"loss": written(file, tmp_path)},
            "environment": {"id": "CartPole-v1"},
            "run": {"total_steps": 4096},
            "actor": {"environments": 8},
            "ppo": {"epochs": 2, "minibatches": 2},
            "evaluation": {"episodes": 2, "interval_steps": 4096, "max_episode_steps": 20},
        }
    )
    train(config, folder=tmp_path / "run")
    training, name = penstock.load_metrics(tmp_path / "run").training, f"loss_{STATISTICS[file]}"
    assert (training[name] >= 0.0).all() and (training["value_loss"] > 0.0).all()
    assert tag_of("training", name) == f"loss/{STATISTICS[file]}"


@pytest.mark.parametrize("file", LOSSES)
def test_an_example_depends_on_every_parameter_of_a_policy(file: str, tmp_path: Path) -> None:
    assert len(make_learner("Pendulum-v1", loss=written(file, tmp_path)).notices) == 1


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_dual_clip_is_ppo_up_to_a_bound_that_is_rarely_reached(env_id: str, tmp_path: Path) -> None:
    batch = make_batch(env_id, fresh=4)
    learners = [make_learner(env_id, loss=name) for name in (written("dual_clip.py", tmp_path), "penstock.losses:ppo")]
    for learner in learners:
        learner.train(batch, 0.0)
    assert same_parameters(*learners)
    text = FILES["dual_clip.py"].replace("BOUND = 3.0", "BOUND = 0.5")
    (tmp_path / "low").mkdir()
    low = make_learner(env_id, loss=written("dual_clip.py", tmp_path / "low", text))
    outcome = low.train(batch, 0.0)
    assert not same_parameters(low, learners[1])
    share = outcome.statistics.own["bounded_share"]
    assert share is not None and share > 0.1


def test_symlog_values_are_compared_on_a_logarithmic_scale(tmp_path: Path) -> None:
    (tmp_path / "symlog_values.py").write_text(FILES["symlog_values.py"])
    symlog = import_named(str(tmp_path / "symlog_values.py"), "symlog")
    assert callable(symlog)
    found: Tensor = symlog(torch.tensor([0.0, 1.0, -99.0]))
    torch.testing.assert_close(found, torch.tensor([0.0, 0.693147, -4.605170]))
