"""The results of a finished run, and the commands that use them."""

import dataclasses
import itertools
import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.config import build, load_toml
from penstock.learning.durable import checkpoints
from penstock.runs.folder import RunFolder
from penstock.runs.summary import Summary
from tests.support.services.processes import Command, Ended, EndedRun, end_of, listening, run

PNG = b"\x89PNG\r\n\x1a\n"

MY_PACKAGE = """
import gymnasium
import numpy as np


class MyEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float64)
    action_space = gymnasium.spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 5.0]), dtype=np.float64)

    def __init__(self, length=20):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=3).clip(-10.0, 10.0), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        ended = self.steps >= self.length
        return self.np_random.normal(size=3).clip(-10.0, 10.0), -float(np.abs(action - 1.0).sum()), False, ended, {}


gymnasium.register("MyEnv-v0", MyEnv)
"""


@dataclass(frozen=True, slots=True)
class Afterwards:
    """Results of commands after the end of the run, and with a user's own package.

    Attributes:
        evaluated: Result of `penstock evaluate`, which also recorded a video, and the copy of the run that it played.
        folder: Copy of the run that was continued.
        prolonged: Result of its next session.
        own_folder: Folder of a run with the user's environment.
        own: Result of that run.
    """

    evaluated: Ended
    played: Path
    folder: Path
    prolonged: Ended
    own_folder: Path
    own: Ended


@pytest.fixture(scope="module")
def afterwards(ended_run: EndedRun, tmp_path_factory: pytest.TempPathFactory) -> Afterwards:
    """Runs all commands at the same time, because starting takes most of their time."""
    place = tmp_path_factory.mktemp("afterwards")
    copy, played, own, package = place / "copy", place / "played", place / "own", place / "site" / "my_package"
    for each in (copy, played):
        shutil.copytree(ended_run.folder, each)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(MY_PACKAGE)
    options = ["--env-id=my_package:MyEnv-v0", "--environment.kwargs=length=15", "--total-steps=1000", "--actors=1"]
    with (
        Command("train", f"--resume={copy}", "--total-steps=8000") as prolonged,
        Command(
            *("train", *options, "--evaluation.episodes=4", f"--run-dir={own}"),
            environment={"PYTHONPATH": str(package.parent)},
        ) as trained,
        Command("evaluate", str(played), "--episodes=3", "--seed=5", "--record-video") as evaluated,
    ):
        return Afterwards(end_of(evaluated), played, copy, end_of(prolonged), own, end_of(trained))


def records_of(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in RunFolder(folder).metrics.read_text().splitlines()]
    return [record for record in records if record["kind"] in kinds]


def test_a_run_creates_only_files_that_its_folder_lists(ended_run: EndedRun) -> None:
    # An aborted start removes the listed files.
    assert set(ended_run.folder.iterdir()) <= set(RunFolder(ended_run.folder).everything())


def test_a_run_ends_with_exit_code_0_and_leaves_no_process(ended_run: EndedRun) -> None:
    assert ended_run.end.code == 0, ended_run.end.stderr
    assert ended_run.end.stderr == ""
    assert ended_run.end.left_behind == []
    assert listening(ended_run.ports) == set()


def test_a_pipe_gets_a_line_when_the_state_has_changed(ended_run: EndedRun) -> None:
    lines = ended_run.end.stdout.splitlines()
    assert [line for line, next_line in itertools.pairwise(lines) if line == next_line] == []
    start = [line for line in lines if line.startswith(("checking the environment: ", "starting: "))]
    assert "replay loading · learner waiting · actors 0/1 · evaluator waiting" in start[0]
    assert any("learner waiting for" in line for line in start)


def test_the_last_lines_show_the_result_and_its_folder(ended_run: EndedRun) -> None:
    said = ended_run.end.stdout
    assert said.startswith("preset cartpole for CartPole-v1\n")
    summary = Summary.read(ended_run.folder / "summary.json")
    assert f"\n{summary.verdict}\nreturn " in said
    assert summary.threshold == 20.0 and "(threshold 20) after " in summary.verdict
    assert re.search(
        r"^return +[\d.]+ ± [\d.]+ over 5 new episodes: best checkpoint \(version \d+\), chosen for", said, re.MULTILINE
    )
    assert f"penstock evaluate {ended_run.folder} --record-video" in said


def test_the_summary_has_every_field_and_agrees_with_the_run(ended_run: EndedRun) -> None:
    raw = json.loads((ended_run.folder / "summary.json").read_text())
    assert list(raw) == [field.name for field in dataclasses.fields(Summary)]
    assert list(raw["evaluation"]) == ["episodes", "return_mean", "return_std", "unfinished", "info_metrics"]
    summary = Summary.read(ended_run.folder / "summary.json")
    assert (summary.run_dir, summary.env_id, summary.seed) == (str(ended_run.folder), "CartPole-v1", 1)
    assert summary.stopped == "total_steps"
    assert 6_000 <= summary.env_steps < 7_000
    assert summary.env_steps_taken >= summary.env_steps
    assert (summary.sessions, summary.total_wall_s) == (1, summary.wall_s)
    assert summary.best_evaluation is not None
    assert summary.evaluation is not None and summary.evaluation.episodes == 5
    assert 9.0 <= summary.evaluation.return_mean <= 500.0
    reached = next(record for record in records_of(ended_run.folder, "evaluation") if record["return_mean"] >= 20.0)
    assert summary.env_steps_to_threshold == reached["env_steps"]
    assert summary.learn_wall_s_to_threshold == pytest.approx(reached["training_s"], abs=1e-3)
    assert 0.0 < summary.env_steps / summary.env_steps_per_s < summary.wall_s
    assert 1.0 < summary.samples_per_insert <= 2.0
    assert 0.0 < summary.staleness_mean <= 64.0
    best = checkpoints.read_progress(RunFolder(ended_run.folder).best_checkpoint)
    assert summary.policy_version == best.version


def test_the_statistics_of_an_ended_run_are_plausible_and_its_last_lines_show_the_main_ones(
    ended_run: EndedRun,
) -> None:
    summary = Summary.read(ended_run.folder / "summary.json")
    statistics, training = summary.statistics, records_of(ended_run.folder, "training")
    assert statistics is not None
    assert (statistics.mode, statistics.off_policy_degree) == ("asynchronous", 1)
    assert statistics.batches_trained == training[-1]["version"]
    # Collection is at most one batch ahead, and every collected segment is trained once as fresh.
    assert 0.0 <= statistics.batches_collected - statistics.batches_trained <= 2.0
    assert statistics.evaluations == len(records_of(ended_run.folder, "evaluation"))
    assert statistics.lag is not None and statistics.staleness is not None
    assert 0.0 <= statistics.lag.mean <= statistics.lag.maximum <= 1
    assert statistics.staleness.mean == summary.staleness_mean <= statistics.staleness.maximum <= 64
    # The run has no callbacks.
    times = dataclasses.asdict(statistics.times)
    assert times.pop("batch_callbacks_s") is None
    assert all(seconds is not None and seconds > 0.0 for seconds in times.values())
    assert 0.0 < sum(wait.share for wait in statistics.waits) < 1.0
    assert statistics.drops.refused_segments == statistics.drops.refunded_segments == 0
    assert statistics.recent is not None and statistics.recent_batches == min(100, statistics.batches_trained)
    share, entropy = statistics.recent.effective_sample_share, statistics.recent.entropy
    assert share is not None and 0.0 < share <= 1.0 + 1e-5
    assert entropy is not None and statistics.first_entropy is not None
    assert 0.0 < entropy <= statistics.first_entropy <= math.log(2.0) + 1e-5
    for name in ("fresh_lag_mean", "staleness_mean", "batch_train_s", "batch_wait_s"):
        assert all(record[name] >= 0.0 for record in training), name
    # Actors report a few times per second; an earlier record lacks their numbers.
    collecting = [record["collect_environment_s"] for record in training]
    assert any(seconds is not None for seconds in collecting)
    assert all(seconds is None or seconds >= 0.0 for seconds in collecting)
    replayed = statistics.replayed
    assert replayed is not None and replayed.drawn_priority is not None and replayed.drawn_priority > 0.0
    assert 1.0 <= replayed.age_mean <= replayed.age_90 <= statistics.staleness.maximum
    said = run("status", str(ended_run.folder)).stdout
    assert f"replay       {summary.samples_per_insert:.1f} uses per segment | age {replayed.age_mean:.1f}, 90%" in said
    assert "effective sample share" in said and f"asynchronous, lag {statistics.lag.mean:.1f}" in said


def test_the_configuration_in_the_folder_is_the_one_that_ran(ended_run: EndedRun) -> None:
    path = ended_run.folder / "config.toml"
    config = build(load_toml(path))
    assert config.to_toml() == path.read_text()
    expected = penstock.preset(
        "cartpole",
        run={"seed": 1, "total_steps": 6_000, "stop_at_return": None},
        train={"actors": 1},
        actor={"environments": 8},
        sampling={"batch_segments": 32, "fresh_fraction": 0.5},
        # The launcher sizes the store for the run's segments.
        replay={"capacity_bytes": 64 * 2**20},
        evaluation={"threshold": 20.0, "interval_steps": 2_000, "episodes": 5},
        checkpoint={"save_interval": 1_000, "max_checkpoints": 2},
        # An option, a variable and the file of --config, all of which override the preset's learning rate.
        ppo={"epochs": 3, "minibatches": 3, "discount": 0.98},
    )
    assert config == expected


def test_metrics_are_one_json_object_per_line_with_increasing_steps(ended_run: EndedRun) -> None:
    training = records_of(ended_run.folder, "training")
    evaluations = records_of(ended_run.folder, "evaluation")
    for series in (training, evaluations):
        steps = [record["env_steps"] for record in series]
        assert len(steps) >= 2
        assert steps == sorted(set(steps))
    assert training[-1]["env_steps"] == Summary.read(ended_run.folder / "summary.json").env_steps
    assert all(record["episodes"] == 5 for record in evaluations if record["kind"] == "evaluation")
    assert len(records_of(ended_run.folder, "final_evaluation")) == 1


def test_the_newest_checkpoints_and_the_best_are_kept(ended_run: EndedRun) -> None:
    folder = RunFolder(ended_run.folder)
    assert len(folder.numbered_checkpoints()) == 2
    assert set(folder.checkpoints.iterdir()) == {
        *folder.numbered_checkpoints(),
        folder.best_checkpoint,
        folder.best_measured,
    }
    newest = checkpoints.read_progress(folder.numbered_checkpoints()[-1])
    assert newest.env_steps == Summary.read(folder.summary).env_steps


def test_the_folder_contains_a_plot_and_logs_and_no_temporary_files(ended_run: EndedRun) -> None:
    folder = RunFolder(ended_run.folder)
    assert folder.learning_curve.read_bytes().startswith(PNG)
    logs = {path.stem: path.read_text().splitlines() for path in folder.logs.iterdir()}
    assert set(logs) == {"replay", "learner", "evaluator", "actor-0"}
    for name, lines in logs.items():
        events = [json.loads(line) for line in lines]
        assert events[-1]["event"] == "stopped", name
        assert {event["service"] for event in events} == {name.partition("-")[0]}
    assert {path.name for path in folder.root.iterdir()} == {
        "config.toml",
        "metrics.jsonl",
        "tensorboard",
        "summary.json",
        "learning_curve.png",
        "report.html",
        "checkpoints",
        "logs",
        "versions.json",
        "roster.json",
        "identity.json",
        "roster.copy.json",
    }


def test_a_trained_policy_is_loaded_with_one_call_and_acts(ended_run: EndedRun) -> None:
    policy = penstock.load_policy(ended_run.folder)
    observation = np.array([0.1, 0.0, -0.1, 0.0])
    assert policy.act(observation) == policy.act(observation)
    assert {int(policy.act(observation, deterministic=False)) for _ in range(200)} == {0, 1}
    numbered = RunFolder(ended_run.folder).numbered_checkpoints()[-1]
    assert penstock.load_policy(numbered).version >= policy.version


def test_evaluate_plays_the_best_checkpoint_and_records_it(afterwards: Afterwards) -> None:
    end = afterwards.evaluated
    assert end.code == 0, end.stderr
    assert "over 3 episodes" in end.stdout
    (video,) = (afterwards.played / "videos").iterdir()
    assert str(video) in end.stdout
    assert video.read_bytes()[4:8] == b"ftyp"


def test_plot_groups_the_runs_of_several_seeds(ended_run: EndedRun, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(ended_run.folder, other)
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(config.replace("seed = 1\n", "seed = 2\n"))
    end = run("plot", str(ended_run.folder), str(other), directory=tmp_path)
    assert (end.code, end.stdout, end.stderr) == (0, "learning_curve.png\n", "")
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(PNG)


def test_status_of_an_ended_run_shows_its_result(ended_run: EndedRun) -> None:
    end = run("status", str(ended_run.folder))
    assert (end.code, end.stderr) == (0, "")
    assert "ended by total_steps" in end.stdout
    assert f"penstock train --resume {ended_run.folder}" in end.stdout


def test_an_ended_run_is_resumed_with_more_steps_and_its_own_settings(
    ended_run: EndedRun, afterwards: Afterwards
) -> None:
    folder, end = afterwards.folder, afterwards.prolonged
    assert end.code == 0, end.stderr
    assert end.left_behind == []
    before, after = (Summary.read(place / "summary.json") for place in (ended_run.folder, folder))
    assert before.env_steps < 8_000 <= after.env_steps < 9_000
    assert after.run_dir == str(folder)
    config = (ended_run.folder / "config.toml").read_text()
    assert (folder / "config.toml").read_text() == config.replace("total_steps = 6000", "total_steps = 8000")
    assert len(RunFolder(folder).numbered_checkpoints()) == 2


def test_a_resumed_run_repeats_no_version_and_no_incarnation(ended_run: EndedRun, afterwards: Afterwards) -> None:
    folders = (ended_run.folder, afterwards.folder)
    before, after = (records_of(folder, "training") for folder in folders)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    for name in ("version", "env_steps"):
        values = [record[name] for record in after]
        assert values == sorted(set(values)), name
    seconds = [record["training_s"] for record in after]
    assert seconds[0] > 0.0 and seconds == sorted(seconds)
    rosters = [json.loads((folder / "roster.json").read_text())["content"] for folder in folders]
    assert [{last for _, last in roster["environments"]} for roster in rosters] == [{1}, {2}]


def test_an_environment_from_a_user_package_is_trained_with_continuous_actions(afterwards: Afterwards) -> None:
    folder, end = afterwards.own_folder, afterwards.own
    assert end.code == 0, end.stderr
    assert end.left_behind == []
    summary = Summary.read(folder / "summary.json")
    assert summary.env_id == "my_package:MyEnv-v0"
    assert summary.evaluation is not None
    # The bounds limit a return to 15 steps with an error of at most 3 + 4 each.
    assert -15 * 7.0 <= summary.evaluation.return_mean < 0.0
    action = penstock.load_policy(folder).act(np.zeros(3))
    assert np.all(action >= [-2.0, 0.0]) and np.all(action <= [2.0, 5.0])


@pytest.mark.nightly
def test_a_run_may_replay_everything_and_wait_for_its_evaluations(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = "--total-steps=20000 --stop-at-return=None --actors=1 --envs-per-actor=8 --evaluation.episodes=5"
    options += " --policy.normalise-returns=false"
    ended = run(
        "train",
        "--preset=cartpole_no_replay",
        *options.split(),
        "--evaluation.interval-steps=5000",
        "--evaluation.mode=synchronous",
        "--sampling.fresh-fraction=0",
        "--sampling.max-staleness=16",
        f"--run-dir={folder}",
    )
    assert ended.code == 0, ended.stdout + ended.stderr
    summary = Summary.read(RunFolder(folder).summary)
    assert summary.stopped == "total_steps"
    assert summary.env_steps >= 20_000
    records = [json.loads(line) for line in RunFolder(folder).metrics.read_text().splitlines()]
    training = [record for record in records if record["kind"] == "training"]
    assert {record["fresh_lag_mean"] for record in training} == {0.0}
    assert max(record["staleness_max"] for record in training) <= 16
    # Collection is unlimited here, so the batches of a slow learner may be many steps apart.
    evaluations, due_at = 0, 5_000
    for record in records:
        if record["kind"] == "evaluation":
            # The final policy is always evaluated.
            assert record["env_steps"] >= min(due_at, summary.env_steps)
            evaluations, due_at = evaluations + 1, record["env_steps"] + 5_000
        elif record["kind"] == "training":
            assert record["env_steps"] < due_at
    assert evaluations
