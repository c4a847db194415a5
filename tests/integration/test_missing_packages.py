"""Commands without the optional packages: training needs none, and whatever needs one names its extra in one line."""

from pathlib import Path

import pytest

from penstock.machine.extras import EXTRA_OF
from penstock.runs.folder import RunFolder
from tests.support.machine.hidden_packages import hiding
from tests.support.services.processes import EndedRun, run

pytestmark = pytest.mark.nightly

SHORT = ("--env-id=CartPole-v1", "--preset=none", "--total-steps=4096", "--evaluation.episodes=2", "--train.actors=1")


@pytest.fixture(scope="module")
def bare_run(tmp_path_factory: pytest.TempPathFactory) -> EndedRun:
    """A run that was trained without any optional package."""
    folder, site = tmp_path_factory.mktemp("runs") / "bare", tmp_path_factory.mktemp("site")
    films = "--evaluation.film-every=1"
    end = run("train", *SHORT, films, "--run-dir", str(folder), environment=hiding(site, *EXTRA_OF))
    return EndedRun(folder, end, set())


def test_training_needs_no_optional_package_and_says_once_how_to_get_the_curve(bare_run: EndedRun) -> None:
    assert bare_run.end.code == 0, bare_run.end.stderr
    said = (
        "the learning curve will not be drawn, because it needs matplotlib;"
        " install it with: pip install 'penstock[plot]'"
    )
    assert bare_run.end.stdout.count("penstock[plot]") == 1 and said in bare_run.end.stdout
    folder = RunFolder(bare_run.folder)
    assert folder.summary.exists() and not folder.learning_curve.exists()


def test_films_that_were_asked_for_are_left_out_with_the_remedy(bare_run: EndedRun) -> None:
    said = "evaluations will not be filmed, because films need moviepy; install it with: pip install 'penstock[video]'"
    assert bare_run.end.stdout.count(said) == 1
    assert not [*RunFolder(bare_run.folder).videos.glob("*")]


@pytest.mark.parametrize(
    ("command", "hidden", "message"),
    [
        (("plot",), "matplotlib", "penstock plot needs matplotlib; install it with: pip install 'penstock[plot]'"),
        (
            ("evaluate", "--record-video", "--episodes=1"),
            "moviepy",
            "penstock evaluate --record-video needs moviepy; install it with: pip install 'penstock[video]'",
        ),
        (
            ("evaluate", "--record-video", "--episodes=1"),
            "pygame",
            "the film of CartPole-v1 needs pygame; install it with: pip install 'penstock[video]'",
        ),
    ],
)
def test_a_command_names_the_extra_that_it_needs(
    bare_run: EndedRun, tmp_path: Path, command: tuple[str, ...], hidden: str, message: str
) -> None:
    end = run(command[0], str(bare_run.folder), *command[1:], environment=hiding(tmp_path, hidden))
    assert (end.code, end.stderr) == (2, f"penstock: {message}\n")


def test_evaluation_without_a_film_needs_no_optional_package(bare_run: EndedRun, tmp_path: Path) -> None:
    end = run("evaluate", str(bare_run.folder), "--episodes=1", environment=hiding(tmp_path, *EXTRA_OF))
    assert (end.code, end.stderr) == (0, "")


@pytest.mark.parametrize(
    ("options", "user", "module", "extra"),
    [
        (("--env-id=LunarLander-v3",), "'LunarLander-v3'", "Box2D", "box2d"),
        (("--env-id=HalfCheetah-v5",), "'HalfCheetah-v5'", "mujoco", "mujoco"),
        (("--env-id=ALE/Breakout-v5", "--preset=none"), "'ALE/Breakout-v5'", "ale_py", "atari"),
        (("--preset=pong",), "'ALE/Pong-v5'", "ale_py", "atari"),
        (("--env-id=MiniGrid-Empty-5x5-v0",), "'MiniGrid-Empty-5x5-v0'", "minigrid", "minigrid"),
    ],
)
def test_an_environment_names_the_extra_that_it_needs(
    tmp_path: Path, options: tuple[str, ...], user: str, module: str, extra: str
) -> None:
    folder = tmp_path / "run"
    end = run("train", *options, "--run-dir", str(folder), environment=hiding(tmp_path, *EXTRA_OF))
    assert end.code == 2 and end.stderr.count("\n") == 1, end.stderr
    assert user in end.stderr
    assert end.stderr.endswith(f"needs {module}; install it with: pip install 'penstock[{extra}]'\n")
    assert not folder.exists()
