"""Figures of a study: interquartile means, their intervals, and their table."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.documents import page_of, write_into
from benchmarks.study.estimates import over_tasks, paired_ratio
from benchmarks.study.experiments import BURN_IN, DEFAULTS, EXPERIMENTS, PRESETS, REPLAY
from benchmarks.study.report import read_outcomes, table, write_outcomes
from benchmarks.study.running import Crew, Unfinished, in_parallel
from benchmarks.study.tasks import (
    MASKED_TASK,
    RECURRENT_TASK,
    TASKS,
    WITH_PRESETS,
)
from penstock.config import Config
from penstock.presets import preset
from penstock.replay.masses import MassFunction
from tests.support.machine.timing import start_patience_s, wait_for_run
from tests.support.results.result_files import RESULTS, read_index
from tests.support.training.single_process import Outcome

pytestmark = pytest.mark.nightly


def test_an_interval_contains_the_true_ratio_as_often_as_it_says() -> None:
    # A bootstrap of five values contains it in 83% of cases.
    logs = np.random.default_rng(1).normal(0.3, 0.5, size=(2_000, 5))
    found = [paired_ratio([(float(np.exp(each)), 1.0) for each in row]).interval for row in logs]
    contained = [low <= np.exp(0.3) <= high for low, high in filter(None, found)]
    assert len(contained) == 2_000
    # Four standard errors of a share of 0.95 are 0.02.
    assert np.mean(contained) == pytest.approx(0.95, abs=0.02)


def test_fewer_than_five_seeds_or_tasks_have_no_interval() -> None:
    four = paired_ratio([(1.0, 2.0), (2.0, 1.0)] * 2)
    five = paired_ratio([(1.0, 2.0), (2.0, 1.0)] * 2 + [(1.0, 1.0)])
    assert four.interval is None
    assert five.interval is not None
    assert over_tasks([five] * 4).interval is None
    # The tasks agree.
    assert over_tasks([four] * 5).interval == pytest.approx((four.mean, four.mean))


def test_an_interval_over_tasks_has_their_differences() -> None:
    # Each task is certain of its ratio: 1/2, 1, 2, 1, 1. The deviation of the logarithms is ln 2 / sqrt 2.
    found = over_tasks([paired_ratio([(ratio, 1.0)]) for ratio in (0.5, 1.0, 2.0, 1.0, 1.0)])
    half = 2.7764451 * np.log(2.0) / 2**0.5 / 5**0.5
    assert found.mean == pytest.approx(1.0)
    assert found.interval == pytest.approx((np.exp(-half), np.exp(half)))


def test_a_section_is_replaced_in_place_and_the_rest_is_unchanged(tmp_path: Path) -> None:
    document = tmp_path / "RESULTS.md"
    document.write_text("# Results\n\nBefore.\n")
    write_into(document, "one", "first", writer="benchmarks.study")
    write_into(document, "two", "second", writer="benchmarks.study")
    document.write_text(document.read_text() + "\nAfter.\n")
    write_into(document, "one", "third", writer="benchmarks.study")
    text = document.read_text()
    assert text.index("Before.") < text.index("third") < text.index("second") < text.index("After.")
    assert "first" not in text


def gradient_steps(config: Config) -> float:
    """Gradient steps per fresh segment."""
    return config.ppo.epochs * config.ppo.minibatches / config.sampling.fresh_segments


@pytest.mark.parametrize("task", TASKS)
def test_runs_with_and_without_replay_take_as_many_gradient_steps(task: str) -> None:
    made = {setting.name: REPLAY.configuration(TASKS[task], setting, 0) for setting in REPLAY.settings}
    for name, config in made.items():
        assert gradient_steps(config) == gradient_steps(made["prioritized"]), name
        assert (config.sampling.fresh_fraction == 1.0) == name.startswith("none"), name
        fresh = 16 if "16 fresh" in name else 4
        assert (config.actor.environments, config.sampling.fresh_segments) == (fresh, fresh), name


@pytest.mark.parametrize("task", WITH_PRESETS)
def test_presets_are_studied_unchanged(task: str) -> None:
    name, (setting,) = TASKS[task].preset, PRESETS.settings
    assert name is not None
    shipped = preset(name)
    config = PRESETS.configuration(TASKS[task], setting, 0)
    assert (config.policy, config.ppo) == (shipped.policy, shipped.ppo)
    assert config.actor.environments == shipped.train.actors * shipped.actor.environments
    assert config.sampling == shipped.changed({"sampling": {"off_policy_degree": 1}}).sampling
    assert config.run.total_steps == shipped.run.total_steps


def test_age_without_priority_leaves_the_age_alone_to_decide() -> None:
    (setting,) = (each for each in REPLAY.settings if each.name == "age without priority")
    sampling = REPLAY.configuration(TASKS[MASKED_TASK], setting, 0).sampling
    function = MassFunction(sampling.alpha, sampling.epsilon, sampling.half_life, reference=0)
    # Two segments of each age, with small and large priorities.
    masses = function.masses(np.array([0.0, 100.0, 0.0, 100.0]), np.array([0, 0, 3, 3]))
    assert masses.tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("task", DEFAULTS.tasks)
def test_runs_of_the_defaults_have_no_setting_of_the_task_that_affects_training(task: str) -> None:
    made = {setting.name: DEFAULTS.configuration(TASKS[task], setting, 0) for setting in DEFAULTS.settings}
    # As with two actors of eight environments.
    assert made["defaults"].actor.environments == 16
    assert (made["defaults"].policy, made["defaults"].ppo, made["defaults"].sampling) == (
        Config().policy,
        Config().ppo,
        Config(off_policy_degree=1).sampling,
    )
    assert len({config.to_toml() for config in made.values()}) == len(DEFAULTS.settings)


def test_runs_with_burn_in_differ_in_the_burn_in_alone() -> None:
    made = {each.label: BURN_IN.configuration(TASKS[RECURRENT_TASK], each, 0) for each in BURN_IN.settings}
    for lag in (1, 8):
        without = made[f"{lag} behind, burn-in 0"]
        assert without.sampling.off_policy_degree == lag
        for rows in (0, 8):
            config = made[f"{lag} behind, burn-in {rows}"]
            assert config == without.changed({"ppo": {"burn_in_steps": rows}})


def test_a_ratio_of_pairs_is_the_geometric_mean_and_all_tasks_count_alike() -> None:
    tasks = [paired_ratio([(1.0, 2.0), (2.0, 1.0)]), paired_ratio([(1.0, 4.0)] * 3)]
    assert [each.mean for each in tasks] == pytest.approx([1.0, 0.25])
    assert over_tasks(tasks).mean == pytest.approx(0.5)
    with pytest.raises(ValueError, match="positive"):
        paired_ratio([(0.0, 1.0)])


def test_the_table_compares_steps_of_equal_seeds_and_counts_a_run_that_fails_with_all_its_steps() -> None:
    (task,) = tasks = ("Taxi-v4",)

    def outcome(steps: int | None) -> Outcome:
        return Outcome(((0, -187.1), (30_000, 7.93)), steps, 7.93, 1, 1.0)

    outcomes = {(task, setting.label): [outcome(20_000), outcome(None)] for setting in REPLAY.settings}
    outcomes[task, "prioritized"] = [outcome(10_000), outcome(15_000)]
    text = table(REPLAY, tasks, outcomes)
    assert text.count(" never (1 of 2); 100 [100, 100] |") == len(REPLAY.settings) - 1
    assert " 12.5k; 100 [100, 100] |" in text
    # Two seeds and one task have no interval.
    assert text.count(" 0.50 |") == 2 * sum(ours == "prioritized" for ours, _ in REPLAY.compared)


def test_published_runs_give_the_table_that_was_published(tmp_path: Path) -> None:
    (task,) = tasks = ("Taxi-v4",)
    outcomes = {
        (task, setting.label): [
            Outcome(((0, -187.1), (20_000, value), (30_000, 7.93)), steps, 7.93, 9, 1.0)
            for value, steps in ((5.5, 20_000), (-20.25, None))
        ]
        for setting in REPLAY.settings
    }
    path = tmp_path / "replay.json"
    write_outcomes(outcomes, path)
    again = read_outcomes(path)
    assert table(REPLAY, tasks, again) == table(REPLAY, tasks, outcomes)
    assert [each.curve for each in again[task, "uniform"]] == [each.curve for each in outcomes[task, "uniform"]]
    provenance = json.loads(path.read_text())["provenance"]
    assert {"commit", "machine", "date", "command"} <= set(provenance)


@pytest.mark.parametrize(
    "name", [name for name in sorted(EXPERIMENTS) if f"study {name}:" in page_of(name).read_text()]
)
def test_the_published_tables_are_those_of_the_published_runs(name: str) -> None:
    outcomes = read_outcomes(RESULTS / f"{name}.json")
    experiment = EXPERIMENTS[name].part({label for _, label in outcomes})
    tasks = list(dict.fromkeys(task for task, _ in outcomes))
    assert table(experiment, tasks, outcomes) in page_of(name).read_text(), (
        f"run `python -m benchmarks.study {name} --published`"
    )


def test_the_index_says_which_published_studies_can_be_repeated() -> None:
    commands = {result.name: result.command.split() for result in read_index().results.values() if not result.deleted}
    repeated = {words[3] for words in commands.values() if words[:3] == ["python", "-m", "benchmarks.study"]}
    assert repeated <= EXPERIMENTS.keys()


def test_a_crew_begins_nothing_when_its_time_is_over() -> None:
    seen: list[str] = []
    late = Crew(1, end_s=time.monotonic())
    with pytest.raises(Unfinished, match="1 of 1 runs have not begun"):
        in_parallel(abs, {"one": (-1,)}, late, lambda key, result: seen.append(key))
    assert seen == []
    assert in_parallel(abs, {"one": (-1,), "two": (-2,)}, Crew(1), lambda key, result: seen.append(key)) == {
        "one": 1,
        "two": 2,
    }
    assert seen == ["one", "two"]


def announce_and_wait(path: Path) -> None:
    """A run that writes its process id, and never ends."""
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    threading.Event().wait()


def test_runs_end_when_the_command_is_killed(tmp_path: Path) -> None:
    announced = tmp_path / "pid"
    program = (
        "from pathlib import Path\n"
        "from benchmarks.study.running import Crew, in_parallel\n"
        "from benchmarks.tests.test_studies import announce_and_wait\n"
        f"in_parallel(announce_and_wait, {{0: (Path({str(announced)!r}),)}}, Crew(1), print)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2]) as command:
        wait_for_run(announced.exists, "the beginning of the run")
        worker = psutil.Process(int(announced.read_text()))
        command.kill()
    worker.wait(start_patience_s())
