"""What a new user types in the first hour: each line has an answer that works, before anything that takes time."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.cli import main
from penstock.cli.options import parse
from penstock.config import Config
from penstock.local import launcher
from tests.support.services.processes import EndedRun, run

TAKES_NOTHING = "--environment.kwargs=nothing=1"
"""Ends `penstock train` in the check of the environment, after its first lines."""


class Typed(NamedTuple):
    """A command line without `penstock`, its exit code, and what it prints as patterns, each in a line of its own.

    If `at_once`, the answer is the only line, and no process was started for it.
    """

    arguments: str
    code: int
    printed: tuple[str, ...]
    at_once: bool = False


def refused(arguments: str, *printed: str) -> Typed:
    return Typed(arguments, 2, printed, at_once=True)


TYPED = {
    "the_status_of_a_finished_run": Typed(
        "status runs/ended",
        0,
        (r"trained 6,000 steps; raise --total-steps to continue: .* train --resume runs/ended --total-steps 12000$",),
    ),
    "an_id_in_another_case": Typed(
        f"train Cartpole-v1 {TAKES_NOTHING}",
        2,
        ("^preset cartpole for CartPole-v1$", "^Cartpole-v1 is registered as CartPole-v1, which is used$"),
    ),
    "an_id_in_lower_case_without_a_version": Typed(
        f"train cartpole {TAKES_NOTHING}",
        2,
        ("^preset cartpole for CartPole-v1$", "^cartpole is registered as CartPole-v1, which is used$"),
    ),
    "an_id_of_an_earlier_version": refused("train LunarLander-v2", "did you mean LunarLander-v3?"),
    "a_kind_of_environments_as_a_preset": refused(
        "train --preset toytext", "for toy text: taxi, frozen_lake; choose from: "
    ),
    "a_preset_like_no_other": refused("train --preset mario", "unknown preset 'mario'; choose from: "),
    "a_tracker": Typed(f"train CartPole-v1 --wandb {TAKES_NOTHING}", 2, ("^preset cartpole for CartPole-v1$",)),
    "a_tracker_by_its_other_name": Typed(
        f"train CartPole-v1 --use_wandb {TAKES_NOTHING}", 2, ("^preset cartpole for CartPole-v1$",)
    ),
    "an_unknown_tracker": refused("train --neptune", "--tracker wandb, mlflow or trackio sends the same numbers"),
    "a_tracker_misspelt": refused("train --wandb-projct-name x", "did you mean --wandb-project-name"),
    "a_batch_size_in_a_section": refused(
        "train --ppo.batch-size 3", r"sampling\.batch_segments 64 .* about 8 steps, set --ppo\.minibatches 256$"
    ),
    "an_alias_in_a_section": refused("train --ppo.lr 3", r"did you mean ppo\.learning_rate\?"),
    "a_policy": refused("train --policy MyPolicy", r"--policy\.hidden-sizes.*--policy\.module"),
    "a_policy_that_changes_nothing": Typed(
        f"train CartPole-v1 --policy MlpPolicy {TAKES_NOTHING}", 2, ("^preset cartpole for CartPole-v1$",)
    ),
    "a_gpu_that_is_not_there": refused("train --device cuda", "learner.device 'cuda' can't be used: "),
    "another_gpu_that_is_not_there": refused("train --device cuda:3", "learner.device 'cuda:3' can't be used: "),
    "a_folder_that_is_taken": refused(
        "train --run-dir runs/ended", "runs/ended already contains a run; resume it with"
    ),
    "an_evaluation_without_a_run": Typed(
        "evaluate --episodes 2",
        0,
        (
            "^the newest run with a checkpoint is runs/ended$",
            "^skipped, without a checkpoint: runs/broken$",
            "^return ",
        ),
    ),
    "a_plot_without_a_run": Typed(
        "plot",
        0,
        ("^the newest run with records is runs/ended$", "^skipped, without records: runs/broken$", r"curve\.png$"),
    ),
    "help_about_a_command": Typed("help train", 0, (r"^usage: penstock train \[ENV\]", "^examples:$")),
    "help_about_what_is_no_command": refused("help trian", "did you mean train?"),
    "presets": Typed("presets", 0, ("^preset +environment +steps +solved at$", "^pong +ALE/Pong-v5 ")),
    "a_preset": Typed("presets pendulum", 0, ('^id = "Pendulum-v1"$',)),
    "the_version": Typed("version", 0, (r"^penstock \d",)),
    "a_list": refused("list", "there is no command 'list'; .* runs` lists the runs, .* presets` the presets"),
    "an_export": refused("onnx", r"there is no command 'onnx'; `.*penstock export --onnx` writes a trained policy"),
    "a_search_of_settings": refused("tune", "BASE is missing; name a preset .*, as in `.*penstock tune cartpole`"),
    "a_search_by_another_name": refused("optimize", "there is no command 'optimize'; `.*penstock tune"),
    "a_tracker_as_a_command": refused(
        "tensorboard", "there is no command 'tensorboard'; `tensorboard --logdir runs` shows every run"
    ),
    "a_command_like_no_other": refused("deploy", "unknown command 'deploy'; choose from: train, "),
    "runs_for_a_program": Typed("runs --json", 0, (r'^\[\{"run": "runs/broken", .*"run": "runs/ended"',)),
    "runs_in_an_order": Typed("runs --sort best", 0, (r"^ended .*total_steps", "^broken .*interrupted")),
    "a_plot_over_time": Typed("plot runs/ended --x seconds --smooth 5 -o curve.svg", 0, (r"^curve\.svg$",)),
    "a_film": Typed("evaluate runs/ended --episodes 2 --render", 0, ("^filming one episode$", r"\.mp4$")),
    "a_film_by_another_name": Typed("evaluate runs/ended --episodes 2 --video", 0, ("^filming one episode$",)),
    "a_window": Typed("evaluate runs/ended --episodes 2 --human", 0, ("^showing one episode in a window$",)),
    "a_seed_that_is_none": refused("evaluate runs/ended --seed any", "--seed must be a whole number .*, or random"),
}
"""By what is typed."""


@pytest.fixture
def here(ended_run: EndedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a finished run and a newer one that ended before its first checkpoint."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ended_run.folder, tmp_path / "runs" / "ended")
    (tmp_path / "runs" / "broken").mkdir()
    config = tmp_path / "runs" / "broken" / "config.toml"
    config.write_text(Config(environment={"id": "CartPole-v1"}).to_toml())
    later = (tmp_path / "runs" / "ended" / "config.toml").stat().st_mtime + 60.0
    os.utime(config, (later, later))
    # Neither a GPU nor a screen.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    return tmp_path


def answered(arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Runs a command; returns its exit code and the lines that it prints."""
    capsys.readouterr()
    try:
        code = main._run(arguments.split())
    except SystemExit as end:
        code = int(end.code or 0)
    printed = capsys.readouterr()
    return code, (printed.out + printed.err).splitlines()


@pytest.mark.parametrize("name", TYPED)
def test_what_is_typed_in_the_first_hour_is_answered(
    here: Path, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = TYPED[name]
    if typed.at_once:
        # Both start processes.
        monkeypatch.delattr(launcher, "Template")
        monkeypatch.delattr(launcher, "check_environment")
    code, lines = answered(typed.arguments, capsys)
    assert code == typed.code, lines
    assert len(lines) == 1 or not typed.at_once, lines
    for pattern in typed.printed:
        assert any(re.search(pattern.replace("?", r"\?") if typed.at_once else pattern, line) for line in lines), lines


def test_the_number_of_minibatches_that_an_answer_names_is_accepted() -> None:
    parse("penstock train", "", ["--ppo.minibatches", "256"], trains=True)


def test_an_evaluation_is_repeated_unless_its_seed_is_random(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (answered("evaluate runs/ended --episodes 3", capsys) for _ in range(2))
    assert first == again and "seed 1" in first[1][0]
    seeds = {answered("evaluate runs/ended --episodes 1 --seed random", capsys)[1][0] for _ in range(2)}
    assert len(seeds) == 2


def test_runs_are_sorted_by_each_column_and_are_json(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for column, first in (("started", "broken"), ("name", "broken"), ("steps", "ended"), ("size", "ended")):
        found = json.loads("".join(answered(f"runs --json --sort {column}", capsys)[1]))
        assert [run["name"] for run in found] == [first, *({"broken", "ended"} - {first})], column
    (ended,) = (run for run in found if run["name"] == "ended")
    assert ended["env_steps"] >= 6_000 and ended["state"] == "total_steps" and ended["folder_bytes"] > 10_000


COMMAND = re.compile(r"(?:\S*/|python -m |(?<![\w/.]))penstock((?: [\w./=:-]*[\w/=-])+)")
"""A command in a line, which ends with the line, a backtick, or a comma or the like."""


@pytest.mark.nightly
def test_commands_that_messages_suggest_work_as_they_are_printed(
    here: Path, ended_run: EndedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    place = str(ended_run.folder)
    lines = [line.replace(place, "runs/ended") for line in ended_run.end.stdout.splitlines()]
    lines += answered("status runs/ended", capsys)[1] + answered("status runs/broken", capsys)[1]
    for wrong in ("list", "run", "play", "resume", "train --neptune", "train --capture-video"):
        lines += answered(wrong, capsys)[1]
    (here / "empty").mkdir()
    lines += answered("runs empty", capsys)[1]
    suggested = dict.fromkeys(
        found.strip() for line in lines if not line.startswith("steps ") for found in COMMAND.findall(line)
    )
    assert {
        "evaluate runs/ended --record-video",
        "train --resume runs/ended --total-steps 12000",
        "train --resume runs/broken",
        "presets",
        "train",
        "train --resume",
    } <= suggested.keys()
    for command in suggested:
        words = shlex.split(command)
        if words[0] == "train" and words[-2:] != ["--total-steps", "12000"]:
            # A run of the whole preset takes too long here.
            parse("penstock train", "", words[1:], trains=True)
        else:
            end = run(*words, directory=here)
            assert end.code == 0, (command, end)
