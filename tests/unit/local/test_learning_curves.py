"""Learning curves are read from the metrics of runs, and drawn into files of the kinds that matplotlib knows."""

from dataclasses import fields
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from penstock.config import Config
from penstock.errors import ConfigurationError
from penstock.learning.durable.records import Record
from penstock.learning.step.training_statistics import TrainingStatistics
from penstock.local import learning_curves
from penstock.local.learning_curves import Curve, draw, gather_by_settings, read_curve
from penstock.runs.folder import RunFolder
from penstock.types.statistics import LearningNumbers
from tests.support.tiers import gate_of
from tests.unit.runs.test_runs_metrics import write

NOTHING = np.zeros((0, 2))


def curve(seed: int, **settings: int) -> Curve:
    return Curve(
        "E-v0", tuple((name, str(value)) for name, value in settings.items()), seed, None, NOTHING, NOTHING, {}
    )


def test_curves_are_grouped_by_settings_and_labelled_by_their_differences() -> None:
    groups = gather_by_settings([curve(0, a=1, b=1), curve(1, a=1, b=1), curve(0, a=1, b=2)])
    assert [(label, [member.seed for member in group]) for label, group in groups] == [("b 1", [0, 1]), ("b 2", [0])]


def test_curves_that_differ_in_an_unlabelled_setting_remain_separate() -> None:
    first, second, third = curve(0, a=1, b=1, c=1, d=1), curve(0, a=2, b=2, c=2, d=2), curve(0, a=2, b=2, c=2, d=3)
    assert [group for _, group in gather_by_settings([first, second, third])] == [[first], [second], [third]]


def test_a_single_setting_needs_no_label() -> None:
    assert [label for label, _ in gather_by_settings([curve(0, a=1), curve(1, a=1)])] == [""]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run with three records of training, in one of which no episode ended, and one evaluation."""
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.config.write_text(Config(environment={"id": "Pendulum-v1"}).to_toml())
    trained = [
        Record("training", steps, {"return_mean": -9.0, "episode_return_mean": ended, "entropy": 1.0 / steps})
        for steps, ended in ((10, None), (20, -5.0), (30, -4.0))
    ]
    write(folder.root, *trained, Record("evaluation", 20, {"return_mean": -3.0}))
    return folder


def test_training_returns_are_those_of_the_episodes_that_ended(run: RunFolder) -> None:
    curve = read_curve(run)
    assert curve.training.tolist() == [[20.0, -5.0], [30.0, -4.0]]
    assert curve.evaluation.tolist() == [[20.0, -3.0]]
    assert curve.details["entropy"].tolist() == [[10.0, 0.1], [20.0, 0.05], [30.0, 1.0 / 30.0]]
    assert len(curve.details["staleness_mean"]) == 0


def test_each_number_of_training_is_drawn_under_a_name_that_records_have() -> None:
    recorded = {each.name for kind in (TrainingStatistics, LearningNumbers) for each in fields(kind)}
    assert learning_curves._DETAILS.keys() - recorded == {"env_steps_per_s", "samples_per_insert"}


@pytest.mark.filterwarnings("error", "ignore::DeprecationWarning")
def test_a_run_without_a_finished_episode_is_drawn_without_a_warning(run: RunFolder, tmp_path: Path) -> None:
    run.metrics.unlink()
    write(run.root, Record("training", 10, {"return_mean": None, "value_loss": 0.5, "fresh_lag_mean": 1.0}))
    draw([run], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1_000


def test_runs_of_earlier_releases_have_the_mean_of_the_last_episodes(run: RunFolder) -> None:
    run.metrics.unlink()
    write(run.root, Record("training", 10, {"return_mean": -9.0}))
    assert read_curve(run).training.tolist() == [[10.0, -9.0]]


def test_a_curve_with_one_point_is_visible(run: RunFolder, tmp_path: Path) -> None:
    drawn = []
    for name, value in (("with", -3.0), ("without", None)):
        run.metrics.unlink()
        write(run.root, Record("training", 10, {"entropy": 0.5}), Record("evaluation", 20, {"return_mean": value}))
        draw([run], tmp_path / f"{name}.png")
        drawn.append(matplotlib.image.imread(tmp_path / f"{name}.png"))
    height = drawn[0].shape[0] // 2
    assert drawn[0].shape == drawn[1].shape
    blue = [(np.abs(image[:height, :, :3] - [0.12, 0.44, 0.92]).max(-1) < 0.1).sum() for image in drawn]
    assert blue[0] > blue[1] + 10


@pytest.mark.parametrize("name", gate_of(1, ["curve.svg", "curve.pdf", "curve.png"]))
def test_the_kind_of_file_follows_from_its_name(run: RunFolder, tmp_path: Path, name: str) -> None:
    draw([run], tmp_path / name)
    assert (tmp_path / name).stat().st_size > 1_000


def test_an_unknown_kind_of_file_is_refused(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"curve\.xyz, because its kind is not known; .*\.png, .*\.svg"):
        draw([run], tmp_path / "curve.xyz")
