"""The examples of docs/change-the-algorithm.md are short, and train a run as the page has them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import penstock
from penstock.advantages import Trajectories
from penstock.config import Config, build, merge
from penstock.learning.durable import checkpoints
from penstock.learning.run.assembly import learner_of
from penstock.machine.module_imports import import_named
from penstock.runs.folder import RunFolder
from penstock.runs.metrics import tag_of
from tests.docs.pages import ROOT, blocks, files_of
from tests.support.machine.timing import start_patience_s
from tests.support.training.single_process import train
from tests.support.training.training import CPU, make_batch, make_learner, same_parameters

PAGE = ROOT / "docs" / "change-the-algorithm.md"
FILES = files_of(PAGE)
LOSSES = {"dual_clip.py": "dual_clip", "symlog_values.py": "SymlogValues"}
STATISTICS = {
    "dual_clip.py": "bounded_share",
    "symlog_values.py": "largest_target",
    "inverse.py": "auxiliary",
    "rnd.py": "intrinsic_reward",
}
EXAMPLES = {
    **{file: ("learner.loss", name) for file, name in LOSSES.items()},
    "n_step.py": ("ppo.advantage", "n_step"),
    "rnd.py": ("ppo.intrinsic_reward", "Rnd"),
    "largest_error.py": ("sampling.priority", "largest_error"),
    "decay.py": ("learner.optimizer", "decay"),
    "inverse.py": ("policy.module", "Inverse"),
    "transformer.py": ("policy.module", "Transformer"),
    "traces.py": ("policy.module", "Traces"),
    "easy_first.py": ("sampling.collection", "easy_first"),
    "worst_first.py": ("evaluation.score", "worst_first"),
}
"""The setting and the function or the class of each example."""

VARIANTS = {"environment": {"id": "Pendulum-v1", "variants": [{"g": 5.0}, {"g": 10.0}]}, "train": {"actors": 2}}
FURTHER: dict[str, dict[str, object]] = {
    "easy_first.py": {**VARIANTS, "sampling": {"off_policy_degree": 1}},
    "worst_first.py": VARIANTS,
    "transformer.py": {"environment": {"id": "CartPole-v1", "frame_stack": 4}},
    "traces.py": {"policy": {"memory": "module", "memory_size": 8}},
}
"""Settings that an example needs."""


def written(file: str, folder: Path, text: str | None = None) -> str:
    """Writes the example of this name, and returns the name of its function."""
    (folder / file).write_text(text or FILES[file])
    return f"{folder / file}:{EXAMPLES[file][1]}"


def test_the_page_has_these_examples_of_at_most_40_lines() -> None:
    assert FILES.keys() == {*EXAMPLES, "clone.py"}
    for file, text in FILES.items():
        assert len(text.splitlines()) <= (15 if file == "decay.py" else 40)
    commands = [block.text for block in blocks(PAGE) if block.language == "sh"]
    for file, (setting, name) in EXAMPLES.items():
        assert any(f"--{setting.replace('_', '-')} {file}:{name}\n" in command for command in commands)


@pytest.mark.nightly
def test_a_cloned_policy_is_as_good_as_the_expert_before_it_is_trained(tmp_path: Path) -> None:
    (tmp_path / "clone.py").write_text(FILES["clone.py"])
    subprocess.run(
        [sys.executable, "clone.py"],
        cwd=tmp_path,
        env=os.environ | {"PENSTOCK__RUN__TOTAL_STEPS": "2048"},
        check=True,
        timeout=start_patience_s(),
    )
    cloned = penstock.evaluate(tmp_path / "cloned.safetensors", 10, seed=0, env_id="CartPole-v1")
    assert cloned.return_mean > 400.0
    assert penstock.load_metrics(tmp_path / "runs" / "cloned").training["env_steps"].size


def config_of(file: str, folder: Path) -> Config:
    """Returns the configuration of a short run with an example."""
    section, _, key = EXAMPLES[file][0].partition(".")
    short = {
        "environment": {"id": "CartPole-v1"},
        "run": {"total_steps": 2048},
        "actor": {"environments": 8},
        "ppo": {"epochs": 2, "minibatches": 2},
        "evaluation": {"episodes": 2, "interval_steps": 2048, "max_episode_steps": 20},
        "sampling": {"min_replay_segments": 8},
    }
    return build(merge(short, FURTHER.get(file, {}), {section: {key: written(file, folder)}}))


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_trains_a_run(file: str, tmp_path: Path) -> None:
    config, run = config_of(file, tmp_path), tmp_path / "run"
    train(config, folder=run)
    training = penstock.load_metrics(run).training
    assert (training["value_loss"] > 0.0).all() and (training["gradient_norm"] > 0.0).all()
    if file in STATISTICS:
        name = f"loss_{STATISTICS[file]}"
        assert (training[name] >= 0.0).all()
        assert tag_of("training", name) == f"loss/{STATISTICS[file]}"
    # A learner continues from the checkpoint of the run.
    spec = penstock.load_policy(run, trust_code=True).policy.spec
    recovered, learner = checkpoints.recover(RunFolder(run), config.policy.module), learner_of(config, spec, CPU)
    assert recovered.path is not None
    checkpoints.restore(learner, recovered.path)
    assert any(bool(each.any()) for each in learner.optimizer.state.values())
    if file == "decay.py":
        assert {name.partition("/")[0] for name in learner.optimizer.state} == {"AdamW"}


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


def test_n_step_returns_end_with_episodes(tmp_path: Path) -> None:
    (tmp_path / "n_step.py").write_text(FILES["n_step.py"])
    n_step = import_named(str(tmp_path / "n_step.py"), "n_step")
    assert callable(n_step)
    ended = torch.tensor([[False, False, True, False, False, False, False, False, False, True]])
    reward, next_value = torch.arange(10.0)[None], 100.0 + torch.arange(10.0)[None]
    none = torch.zeros_like(ended)
    steps = Trajectories(
        reward=reward,
        value=torch.ones(1, 10),
        next_value=next_value,
        log_ratio=torch.zeros(1, 10),
        terminated=none,
        truncated=none,
        ended=ended,
        usable=~none,
        discount=0.5,
        trace_decay=0.95,
        rho_clip=1.0,
        trace_clip=1.0,
    )
    found: tuple[Tensor, Tensor] = n_step(steps)
    for first in range(10):
        expected, last = 0.0, min(first + 4, 2 if first <= 2 else 9)
        for step in range(first, last + 1):
            expected += 0.5 ** (step - first) * float(reward[0, step])
        expected += 0.5 ** (last - first + 1) * float(next_value[0, last])
        assert float(found[1][0, first]) == pytest.approx(expected)
    torch.testing.assert_close(found[0], found[1] - 1.0)
