"""Runs as objects, on a copy of a finished run: what they read lazily, what they refuse, and the API's examples."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import penstock
from penstock.api.run import TrainedRun
from penstock.config import SamplingConfig
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.docstrings import examples, trains
from tests.support.training.training import make_batch, make_learner

FINISHED = Path(__file__).parents[2] / "compatibility" / penstock.__version__ / "run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> penstock.Run:
    """A finished run of CartPole, `first` in runs/ of the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(FINISHED, "runs/first")
    return penstock.Run("first")


def test_a_run_is_found_by_name_by_folder_and_as_the_newest(run: penstock.Run) -> None:
    shutil.copytree(FINISHED, "runs/second")
    assert run.run_dir == "runs/first" == penstock.Run("runs/first").run_dir == penstock.Run(run).run_dir
    assert {each.run_dir for each in penstock.list_runs()} == {"runs/first", "runs/second"}
    RunFolder(Path("runs/first")).config.touch()
    assert penstock.list_runs()[0].run_dir == "runs/first"
    assert penstock.list_runs("nothing") == []


def test_a_run_stands_for_its_path(run: penstock.Run) -> None:
    assert penstock.load_policy(run).version == run.policy.version
    assert penstock.Config.load(run) == run.config
    assert penstock.configure("CartPole-v1", start_from=run).run.start_from == str(Path("runs/first").absolute())
    assert penstock.make(run).reset(seed=1)[0].shape == (4,)
    assert penstock.load_metrics(run).training["env_steps"].size == run.metrics().training["env_steps"].size > 0


def test_a_policy_is_loaded_once(run: penstock.Run) -> None:
    assert run.policy is run.policy


def test_episodes_are_those_of_the_command(run: penstock.Run) -> None:
    found = run.evaluate(4, seed=3)
    assert found.episodes == len(found.returns) == len(found.steps) == 4
    assert found.returns == tuple(map(float, found.steps))  # CartPole's rewards are 1.
    assert found.return_mean == np.mean(found.returns) and found.return_std == np.std(found.returns)
    assert (found.env_id, found.seed, found.version) == ("CartPole-v1", 3, run.policy.version)
    options = ["evaluate", "first", "--episodes=4", "--seed=3"]
    command = subprocess.run(
        [sys.executable, "-m", "penstock", *options], capture_output=True, text=True, check=True, timeout=120
    )
    assert command.stdout == f"{found}\n"
    assert penstock.evaluate(RunFolder(Path(run)).best_checkpoint, 4, seed=3, env_id="CartPole-v1") == found
    assert run.evaluate(4, seed=4).returns != found.returns != run.evaluate(4, seed=3, deterministic=False).returns


def test_a_curve_is_drawn_where_it_is_wanted(run: penstock.Run) -> None:
    assert run.plot() == RunFolder(Path(run)).learning_curve
    assert run.plot("curve.svg", x="seconds", smooth=3) == Path("curve.svg")
    assert Path("curve.svg").read_text().startswith("<?xml")


def test_a_trained_run_is_its_summary_and_its_folder(run: penstock.Run) -> None:
    summary = Summary.read(RunFolder(Path(run)).summary)
    # The recorded folder is the one where the run was trained.
    trained = TrainedRun.of(dataclasses.replace(summary, run_dir=run.run_dir))
    assert isinstance(trained, penstock.Summary) and isinstance(trained, penstock.Run)
    assert trained.evaluation == summary.evaluation and trained.verdict in str(trained)
    assert dataclasses.asdict(trained).keys() == dataclasses.asdict(summary).keys()
    assert trained.evaluate(2, seed=1).returns == run.evaluate(2, seed=1).returns
    assert trained.policy is trained.policy and trained.summary == summary


def test_runs_are_listed_without_the_libraries_of_training() -> None:
    program = "import sys, penstock; penstock.list_runs(), penstock.list_presets(), penstock.Run, penstock.evaluate;"
    program += (
        "print([name for name in ('torch', 'gymnasium', 'matplotlib', 'moviepy', 'grpc') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert ended.stdout == "[]\n"


REFUSED: dict[str, tuple[Callable[[penstock.Run], Any], str]] = {
    "no run": (lambda run: penstock.Run("elsewhere/other"), r"there is no run in elsewhere/other, .*list_runs\(\)"),
    "a similar name": (lambda run: penstock.Run("frist"), "no run 'frist'; did you mean runs/first"),
    "a checkpoint file": (lambda run: penstock.Run(RunFolder(Path(run)).best_checkpoint), "there is no run in .*best"),
    "no run to evaluate": (lambda run: penstock.evaluate("elsewhere/other"), "elsewhere/other holds no checkpoint"),
    "no path": (lambda run: penstock.evaluate(run.policy), "expected a run: .*; got TrainedPolicy"),  # type: ignore
    "no episodes": (lambda run: run.evaluate(0), "episodes must be at least 1; got 0"),
    "another seed": (lambda run: run.evaluate(seed=-1), "the seed of episodes must be from 0 .*; got -1"),
    "no such variant": (lambda run: run.evaluate(variant=1), "variant 1 does not exist; the run has no variants"),
    "other spaces": (
        lambda run: penstock.evaluate(run, env_id="Acrobot-v1"),
        "was trained for CartPole-v1, whose spaces or action masks differ from Acrobot-v1's",
    ),
    "another axis": (lambda run: run.plot(x="days"), "x must be one of: steps, seconds; got 'days'"),
    "no smoothing": (lambda run: run.plot(smooth=0), "smooth must be a number of records from 1; got 0"),
    "a picture in no folder": (lambda run: run.plot("nowhere/curve.png"), "can't write nowhere/curve.png"),
    "a film in no folder": (lambda run: run.film("nowhere/a.mp4"), "nowhere, the folder of the film, does not exist"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_mistake_is_one_line_with_the_remedy(run: penstock.Run, case: str) -> None:
    act, message = REFUSED[case]
    with pytest.raises(penstock.ConfigurationError, match=f"^[^\n]*{message}[^\n]*$"):
        act(run)


def test_a_run_without_results_yet_says_so(run: penstock.Run) -> None:
    folder = RunFolder(Path(run))
    folder.summary.unlink()
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(penstock.ConfigurationError, match=r"^runs/first has no summary, .* has not ended; metrics\(\)"):
        _ = run.summary
    for act in (lambda: run.policy, run.evaluate, run.film):
        with pytest.raises(penstock.ConfigurationError, match=r"^runs/first holds no checkpoint"):
            act()


def test_a_film_without_moviepy_names_the_extra(run: penstock.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(penstock.ConfigurationError, match=r"^a film needs moviepy.*pip install"):
        run.film()


def test_the_code_that_a_run_names_is_imported_only_if_trusted(run: penstock.Run) -> None:
    file = RunFolder(Path(run)).config
    marker = Path("imported")
    Path("own.py").write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()\n")
    own = penstock.Config.load(run).changed(environment={"imports": ["own.py"]})
    file.write_text(own.to_toml())
    with pytest.raises(penstock.ConfigurationError, match=r"names code that would run: environment\.imports"):
        penstock.Run("first").evaluate(1)
    assert not marker.exists()
    assert penstock.Run("first", trust_code=True).evaluate(1).episodes == 1
    assert marker.exists()


EXAMPLES = examples()
OF_LEARNER: dict[str, Callable[[Path], Learner]] = {
    "penstock.LossSettings": lambda file: make_learner(loss=f"{file}:without_bonus"),
    "penstock.Minibatch": lambda file: make_learner(loss=f"{file}:unclipped"),
    "penstock.Segments": lambda file: make_learner(sampling=SamplingConfig(priority=f"{file}:rewarded")),
    "penstock.Trajectories": lambda file: make_learner(advantage=f"{file}:one_step"),
}
"""Learners that use the examples that are functions of a learner, in a file."""
HERE = sorted(name for name, code in EXAMPLES.items() if not trains(code) and name not in OF_LEARNER)
"""Examples that run on a finished run. Those that train run in integration/test_python_api.py."""


LONE = """
from gymnasium.envs.classic_control import CartPoleEnv

class Lone(CartPoleEnv):
    made = False

    def __init__(self):
        assert not Lone.made, "a process can make it once"
        Lone.made = True
        super().__init__()
"""


def test_environments_with_processes_of_their_own_in_training_have_them_in_episodes(run: penstock.Run) -> None:
    Path("lone.py").write_text(LONE)
    config = RunFolder(Path(run)).config
    text = config.read_text().replace('id = "CartPole-v1"', f'id = "{Path("lone.py").absolute()}:Lone"')
    config.write_text(text.replace('vectorization = "sync"', 'vectorization = "process"\nworkers = 2'))
    # More than the two environments of training.
    assert penstock.evaluate(run, 3, seed=3, trust_code=True).episodes == 3


class MyEnv(CartPoleEnv):
    """The environment of a user."""


class Spoken(gymnasium.Env[str, np.int64]):
    """An environment that observes a text."""

    observation_space, action_space = spaces.Text(9, charset="abcdefgh "), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "abc def", {}


def test_every_name_of_the_interface_has_an_example() -> None:
    assert {f"penstock.{name}" for name in penstock.__all__} <= EXAMPLES.keys()


@pytest.mark.parametrize("name", OF_LEARNER)
def test_an_example_of_a_function_of_the_learner_trains(name: str, tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(f"import penstock\n\n{EXAMPLES[name]}\n")
    outcome = OF_LEARNER[name](file).train(make_batch(), 0.0)
    assert np.isfinite(outcome.priorities).all() and outcome.statistics.learning.gradient_norm


@pytest.mark.parametrize("name", HERE)
def test_an_example_of_the_documentation_runs(run: penstock.Run, name: str) -> None:
    if ".film(" in EXAMPLES[name]:
        pytest.importorskip("moviepy")
    observation = np.zeros(4, np.float32)
    given = {"observation": observation, "observations": [observation] * 2, "policy": run.policy, "MyEnv": MyEnv}
    given["env"] = Spoken()
    exec(compile(EXAMPLES[name], name, "exec"), {"penstock": penstock, **given})
