"""Runs of `make bench-loop`: their observation, their results and their goals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from benchmarks import as_people_run, like_for_like
from benchmarks.as_people_run import Reached, patience
from benchmarks.loop import Planned, line_of, measured
from benchmarks.loop_results import Results, Run, case, cases_of, goals
from benchmarks.observed import Observed, Point, RunFailed, observe
from benchmarks.peers import equal_work
from benchmarks.peers.equal_work import Work
from benchmarks.peers.loop_run import Course
from benchmarks.peers.vector_pendulum import VectorPendulum
from penstock.cli.options import parse

# A program that writes its journal, and then waits for ever with a process below it.
ENDLESS = """
import json, subprocess, sys, time
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from benchmarks.peers.journal import Journal
below = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
journal = Journal(Path(sys.argv[1]))
journal.trained(100)
journal.evaluated(200, 7.5)
Path(sys.argv[1] + ".pid").write_text(str(below.pid))
time.sleep(1000)
"""


def point(seconds: float, env_steps: int, return_mean: float | None = None) -> Point:
    return Point(seconds, 10.0 * seconds, env_steps, return_mean)


def run(system: str, number: int, result: dict[str, Any] | None, *, table: Any = "like_for_like", **named: Any) -> Run:
    values = {"env_id": "CartPole-v1", "minibatch": 256, "failure": "", "commit": "abc", "date": "", **named}
    return Run(table=table, system=system, round=number, result=result, **values)


def pace(env_steps_per_s: float, cpu_s: float) -> dict[str, Any]:
    return {
        "env_steps_per_s": env_steps_per_s,
        "uses_per_s": 2 * env_steps_per_s,
        "cpu_s_per_million_steps": cpu_s,
    }


def test_an_observed_run_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    pids = tmp_path / "journal.jsonl.pid"
    seen = observe(
        [sys.executable, "-c", ENDLESS, journal, Path(__file__).parents[2]],
        journal,
        enough=lambda points: len(points) == 2 and pids.exists(),
        limit_s=5.0,
    )
    assert [(each.env_steps, each.return_mean) for each in seen.points] == [(100, None), (200, 7.5)]
    assert seen.points[0].cpu_s > 0.0
    assert not psutil.pid_exists(int(pids.read_text()))


def test_a_program_that_fails_shows_its_last_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such environment')"]
    with pytest.raises(RunFailed, match="no such environment"):
        observe(command, tmp_path / "journal.jsonl", enough=lambda points: False, limit_s=60.0)


def test_a_program_that_hangs_without_a_line_has_failed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; print('waiting', flush=True); time.sleep(1000)"]
    with pytest.raises(RunFailed, match="waiting"):
        observe(command, tmp_path / "journal.jsonl", enough=lambda points: False, limit_s=1.0)


def test_the_first_quarter_of_a_run_is_left_out_of_its_pace() -> None:
    # Slow until 12 s, which is less than a quarter of the time from 10 to 20 s.
    points = (point(10.0, 0), point(12.0, 10), point(13.0, 1_000), point(20.0, 8_000))
    found = like_for_like.pace_of(Observed(points, 20.0, "enough"))
    assert found.env_steps_per_s == pytest.approx(1_000.0)
    assert found.uses_per_s == pytest.approx(2_000.0)
    assert found.cpu_s_per_million_steps == pytest.approx(70.0 / 7_000 * 1e6)


def test_a_run_with_one_batch_has_no_pace() -> None:
    with pytest.raises(RunFailed, match="trained 4096"):
        like_for_like.pace_of(Observed((point(10.0, 4_096),), 90.0, "limit"))


def test_the_threshold_must_be_kept_at_the_next_evaluation() -> None:
    lucky = [point(1.0, 100, 480.0), point(2.0, 200, 300.0), point(2.5, 250), point(3.0, 300, 490.0)]
    assert as_people_run.reached(lucky, 475.0) is None
    kept = [*lucky, point(4.0, 400, 475.0)]
    assert as_people_run.reached(kept, 475.0) == point(3.0, 300, 490.0)


def test_peers_are_observed_for_longer_than_the_goal_asks_for() -> None:
    assert patience(Reached(30.0, 40.0, 1_000, 31.0, 500.0)) == 300.0 > 30.0 / as_people_run.MOST_TIME
    assert patience(Reached(1.0, 4.0, 1_000, 4.0, 500.0)) == as_people_run.LEAST_PATIENCE_S
    assert patience(Reached(None, None, None, 60.0, 100.0)) is None
    assert patience(None) is None


def test_a_run_that_fails_is_a_result_and_does_not_end_the_others(tmp_path: Path) -> None:
    def fails() -> dict[str, Any]:
        raise RunFailed("Traceback\nImportError: no module named peer")

    found = measured(Planned("like_for_like", "sb3", "CartPole-v1", 256, 0, fails), "abc")
    assert found.result is None
    assert "no module named peer" in line_of(found)
    results = Results(tmp_path / "loop.json")
    results.add(found)
    (only,) = json.loads((tmp_path / "loop.json").read_text())["like_for_like"]
    assert (only["rounds"], only["failed"], only["env_steps_per_s"], only["uses_per_s"]) == (0, 1, None, None)
    results.add(run("sb3", 1, pace(100.0, 10.0)))
    (only,) = json.loads((tmp_path / "loop.json").read_text())["like_for_like"]
    assert (only["rounds"], only["failed"], only["env_steps_per_s"]) == (1, 1, 100.0)


def test_runs_of_a_later_command_are_added_to_the_file_and_replace_their_predecessors(tmp_path: Path) -> None:
    path = tmp_path / "bench" / "loop.json"
    first = Results(path)
    first.add(run("penstock", 0, pace(1_000.0, 10.0)))
    first.add(run("sb3", 0, None, failure="timed out"))
    later = Results(path)
    assert later.finished(run("penstock", 0, None)) is not None
    assert later.finished(run("sb3", 0, None)) is None
    later.add(run("sb3", 0, pace(100.0, 50.0)))
    document = json.loads(path.read_text())
    assert {each["system"]: each["env_steps_per_s"] for each in document["like_for_like"]} == {
        "penstock": 1_000.0,
        "sb3": 100.0,
    }
    assert set(document) >= {"provenance", "settings", "deviations", "goals", "runs"}
    assert document["provenance"]["commit"]


def test_a_case_has_the_medians_of_its_rounds_and_a_missed_threshold_counts_as_the_slowest() -> None:
    missed = {"wall_s": None, "env_steps": None}
    of_three = case(
        [
            run("sb3", 0, {"wall_s": 3.0, "env_steps": 10}, minibatch=0, table="as_people_run"),
            run("sb3", 1, missed, minibatch=0),
            run("sb3", 2, {"wall_s": 1.0, "env_steps": 30}, minibatch=0),
        ]
    )
    assert (of_three["wall_s"], of_three["env_steps"]) == (3.0, 30.0)
    assert "minibatch" not in of_three
    of_two = case([run("sb3", 0, {"wall_s": 3.0, "env_steps": 10}), run("sb3", 1, missed)])
    assert of_two["wall_s"] is None


def tables_of(runs: list[Run]) -> dict[str, Any]:
    names = ("like_for_like", "pipeline_bound", "as_people_run", "data_path")
    return {name: cases_of(runs, name) for name in names}


def test_goals_compare_penstock_with_each_peer_the_cheapest_one_and_the_bound() -> None:
    runs = [
        run("penstock", 0, pace(1_000.0, 10.0)),
        run("sb3", 0, pace(200.0, 20.0)),
        run("rllib", 0, pace(200.0, 50.0)),
        run("bound", 0, {"env_steps_per_s": 4_000.0}, table="pipeline_bound"),
    ]
    found = {goal.name: (goal.measured, goal.met) for goal in goals(tables_of(runs))}
    assert found == {
        "steps/s over sb3": (5.0, True),
        "steps/s over rllib": (5.0, False),
        "CPU time over the best peer": (0.5, False),
        "steps/s over the pipeline's bound": (0.25, False),
    }


def test_the_fastest_peer_may_be_one_that_was_stopped() -> None:
    ours = {"wall_s": 6.0, "observed_s": 7.0}
    peers = [
        run("sb3", 0, {"wall_s": 30.0, "observed_s": 31.0}, table="as_people_run", minibatch=0),
        run("rllib", 0, {"wall_s": None, "observed_s": 20.0}, table="as_people_run", minibatch=0),
    ]
    (goal,) = goals(tables_of([run("penstock", 0, ours, table="as_people_run", minibatch=0), *peers]))
    assert (goal.measured, goal.met) == (0.3, True)
    missed = {"wall_s": None, "observed_s": 60.0}
    (goal,) = goals(tables_of([run("penstock", 0, missed, table="as_people_run", minibatch=0), *peers]))
    assert goal.met is False


def test_a_goal_is_neither_met_nor_missed_if_no_peer_reached_the_threshold() -> None:
    # Whatever Penstock's seconds are: the peers are observed for a multiple of them.
    for ours, observed in ((6.0, 60.0), (12.65, 18.97)):
        runs = [
            run("penstock", 0, {"wall_s": ours, "observed_s": ours}, table="as_people_run", minibatch=0),
            run("rllib", 0, {"wall_s": None, "observed_s": observed}, table="as_people_run", minibatch=0),
        ]
        (goal,) = goals(tables_of(runs))
        assert (goal.measured, goal.met) == (None, None)


def test_the_vector_pendulum_is_gymnasiums() -> None:
    count = 5
    vector = VectorPendulum(num_envs=count, max_episode_steps=30)
    singles = [gymnasium.make("Pendulum-v1", max_episode_steps=30) for _ in range(count)]
    random = np.random.default_rng(0)
    observation, _ = vector.reset(seed=3)
    for env in singles:
        env.reset(seed=0)
    for _ in range(2):
        for index, env in enumerate(singles):
            env.unwrapped.state = np.array([vector._angle[index], vector._velocity[index]])  # type: ignore[attr-defined]
        for step in range(30):
            action = random.uniform(-3.0, 3.0, (count, 1)).astype(np.float32)
            observation, reward, terminated, truncated, _ = vector.step(action)
            expected = [env.step(row) for env, row in zip(singles, action, strict=True)]
            np.testing.assert_allclose(observation, [each[0] for each in expected], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(reward, [float(each[1]) for each in expected], rtol=1e-5, atol=1e-5)
            assert not terminated.any()
            assert truncated.tolist() == [step == 29] * count == [each[3] for each in expected]
        # This step begins the next episodes.
        observation, reward, _, truncated, _ = vector.step(np.ones((count, 1), np.float32))
        assert not reward.any()
        assert not truncated.any()
        assert (np.abs(vector._velocity) <= 1.0).all()
        assert np.unique(vector._angle).size == count
        for env in singles:
            env.reset()


def test_penstock_does_the_equal_work(tmp_path: Path) -> None:
    for env_id in equal_work.VECTOR_ENVIRONMENTS:
        work = Work(env_id, 1_024, 3, tmp_path / "run" / "metrics.jsonl")
        words = [str(word) for word in like_for_like.penstock_command(work)]
        config = parse("penstock train", "", words[words.index("train") + 1 :], trains=True).config
        assert config.sampling.batch_segments * config.actor.unroll_length == equal_work.BATCH
        assert config.sampling.fresh_segments == config.sampling.batch_segments
        assert (config.ppo.minibatches, config.ppo.epochs, config.ppo.target_kl) == (4, 2, None)
        assert not config.policy.normalise_observations
        assert not config.policy.normalise_returns
        assert config.environment.vectorization == "native"


def test_every_peer_parses_the_command_line_of_its_work(tmp_path: Path) -> None:
    work = Work("CartPole-v1", 256, 1, tmp_path / "journal.jsonl")
    program = "from benchmarks.peers.equal_work import Work; print(Work.from_arguments())"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, *work.options()], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(work)


def test_the_start_of_a_peers_processes_is_not_counted_where_learning_alone_is_compared() -> None:
    course = Course(threshold=475.0)
    for seconds, env_steps, mean_return in ((140.0, 2_000, float("nan")), (142.0, 4_000, 300.0), (146.0, 8_000, 480.0)):
        course.add(seconds, env_steps, mean_return)
    # No episode ended in the last second.
    course.add(147.0, 9_000, float("nan"))
    outcome = course.outcome("training episodes", "")
    assert outcome.env_steps_per_s == pytest.approx(1_000.0)
    assert outcome.learn_wall_s_to_threshold == pytest.approx(8.0)
    assert (outcome.env_steps_to_threshold, outcome.final_return) == (8_000, 480.0)


def test_a_peer_that_does_not_reach_the_threshold_has_no_time_to_it() -> None:
    course = Course(threshold=475.0)
    course.add(0.0, 0)
    course.add(1.0, 500, 474.9)
    # Reported again without a new step.
    course.add(9.0, 500, 500.0)
    outcome = course.outcome("", "")
    assert (outcome.learn_wall_s_to_threshold, outcome.env_steps_to_threshold) == (None, None)
    assert outcome.env_steps_per_s == pytest.approx(500.0)
