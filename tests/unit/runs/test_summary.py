import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from penstock.cli.screen.coordination import show_end
from penstock.config import RunConfig, build
from penstock.errors import ConfigurationError
from penstock.machine import installation
from penstock.runs.summary import EvaluationOutcome, Summary, VariantOutcome, nothing_left, raised_limits
from penstock.types.evaluation import InfoMetric
from penstock.types.extents import RunLimit
from penstock.types.statistics import Ages, CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Wait
from penstock.types.waits import WaitReason

STATISTICS = CoordinatorStatistics(
    mode="asynchronous",
    off_policy_degree=1,
    lag=Ages(1.0, 0.5, 2),
    times=MeanTimes(batch_train_s=0.1),
    waits=(Wait(WaitReason.parse("fresh segments"), 1.0, 0.5),),
    drops=Drops(late_segments=3),
    recent=LearningNumbers(entropy=0.5),
)
SUMMARY = Summary(
    run_dir="run",
    env_id="CartPole-v1",
    seed=1,
    env_steps=1_000,
    wall_s=2.0,
    env_steps_per_s=500.0,
    evaluation=EvaluationOutcome(2, 10.0, 1.0),
    env_steps_to_threshold=None,
    learn_wall_s_to_threshold=None,
    policy_version=7,
    staleness_mean=1.5,
    samples_per_insert=2.0,
    stopped="total_steps",
    statistics=STATISTICS,
    limit=RunLimit("minutes", 0.5, 2.0),
)


@pytest.mark.parametrize("summary", [SUMMARY, replace(SUMMARY, statistics=None, evaluation=None)])
def test_a_summary_is_read_as_it_was_written(tmp_path: Path, summary: Summary) -> None:
    summary.write(tmp_path / "summary.json")
    assert Summary.read(tmp_path / "summary.json") == summary


def test_numbers_of_infos_and_the_reason_of_a_callback_are_shown(tmp_path: Path) -> None:
    info = (InfoMetric("success", 2, 0.5), InfoMetric("distance", 0, None, 2))
    evaluation = EvaluationOutcome(2, 10.0, 1.0, info_metrics=info)
    summary = replace(SUMMARY, evaluation=evaluation, stopped="learner_callback", stop_reason="a:Stop: rate 0.5")
    summary.write(tmp_path / "summary.json")
    assert Summary.read(tmp_path / "summary.json") == summary
    results = dict(summary.results)
    assert results["info"] == "success 0.5, distance - (2 episodes without it)"
    assert results["ended"].startswith("by learner_callback (a:Stop: rate 0.5) after 1,000 steps")
    # A run that a callback has ended is done, and can be continued.
    assert nothing_left(tmp_path / "summary.json", RunConfig(total_steps=2_000)) == ""


def test_a_summary_without_statistics_is_read(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    values = json.loads(path.read_text())
    del values["statistics"]
    path.write_text(json.dumps(values))
    assert Summary.read(path) == replace(SUMMARY, statistics=None)


def test_a_truncated_summary_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ConfigurationError, match=r"can't read the summary .*summary\.json"):
        Summary.read(path)


def test_a_summary_without_totals_over_sessions_is_read(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    values = json.loads(path.read_text())
    for name in ("best_evaluation", "env_steps_taken", "sessions", "total_wall_s", "total_env_steps_per_s"):
        del values[name]
    del values["evaluation"]["unfinished"]
    path.write_text(json.dumps(values))
    assert Summary.read(path) == SUMMARY


def test_a_summary_with_infinite_numbers_is_standard_json(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    replace(SUMMARY, env_steps_per_s=float("inf"), evaluation=EvaluationOutcome(2, float("nan"), 0.0)).write(path)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    values = json.loads(path.read_text(), parse_constant=refuse)
    assert values["env_steps_per_s"] is values["evaluation"]["return_mean"] is None


def test_a_printed_summary_is_what_the_command_prints_at_its_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "learning_curve.png").write_bytes(b"")
    variant = VariantOutcome("size 3", 4, 9.0, EvaluationOutcome(1, 8.0, 0.0))
    summary = replace(SUMMARY, run_dir=str(tmp_path), threshold=9.0, minutes=0.5, variants=(variant,))
    print(summary)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "solved: 10.0 (threshold 9) after 1,000 steps, 30.0 s of training"
    assert lines[1] == "return 10.0 ± 1.0 over 2 new episodes: best checkpoint (version 7)"
    assert [line.split()[0] for line in lines[2:]] == ["variant", "ended", "run", "curve", "film", "plot", "more"]
    show_end(Console(highlight=False), summary, penstock=installation.program())
    ended = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("hint")]
    assert ended == lines
    assert repr(summary).startswith("Summary(run_dir=") and str(summary) == "\n".join(lines)


@pytest.mark.parametrize(("settings", "trust"), [("", ""), ('imports = ["mine"]', " --trust-code")])
def test_a_printed_command_has_the_option_that_the_run_needs(tmp_path: Path, settings: str, trust: str) -> None:
    (tmp_path / "config.toml").write_text(f'[environment]\nid = "CartPole-v1"\n{settings}\n')
    film = next(line for line in str(replace(SUMMARY, run_dir=str(tmp_path))).splitlines() if line.startswith("film"))
    assert film.endswith(f"--record-video{trust}")


def test_a_notebook_shows_the_results_and_the_curve_of_a_run(tmp_path: Path) -> None:
    summary = replace(SUMMARY, run_dir=str(tmp_path), env_id="<Env>-v0")
    shown = summary._repr_html_()
    assert "<td>&lt;Env&gt;-v0, seed 1</td>" in shown and "<th>ended</th><td>by total_steps after 1,000" in shown
    assert "CoordinatorStatistics" not in shown and "<img" not in shown
    (tmp_path / "learning_curve.png").write_bytes(b"picture")
    assert 'src="data:image/png;base64,cGljdHVyZQ=="' in summary._repr_html_()


def test_the_time_of_a_command_counts_in_the_time_of_all_sessions() -> None:
    summary = replace(SUMMARY, wall_s=10.0, total_wall_s=110.0).timed(12.5)
    assert (summary.wall_s, summary.total_wall_s) == (12.5, 112.5)


SOLVED = replace(SUMMARY, stopped="stop_at_return", best_evaluation=EvaluationOutcome(20, 481.0, 3.0))


@pytest.mark.parametrize(
    ("summary", "run", "reason"),
    [
        (SUMMARY, RunConfig(total_steps=1_000), "has already trained 1,000 steps; raise --total-steps"),
        (SUMMARY, RunConfig(total_steps=999), "has already trained 999 steps"),
        (SUMMARY, RunConfig(total_steps=1_001), ""),
        (SUMMARY, RunConfig(total_minutes=5.0), ""),
        (
            replace(SUMMARY, minutes=5.0),
            RunConfig(total_minutes=5.0, total_steps=9_000),
            "has already trained 5.0 minutes; raise --run.total-minutes to continue",
        ),
        (replace(SUMMARY, updates=70), RunConfig(total_updates=70), "70 updates; raise --run.total-updates"),
        (replace(SUMMARY, episodes=9), RunConfig(total_episodes=8), "8 episodes; raise --run.total-episodes"),
        (replace(SUMMARY, stopped="interrupted"), RunConfig(total_steps=1_000), ""),
        (replace(SUMMARY, stopped="callback"), RunConfig(total_steps=1_000), ""),
        (SOLVED, RunConfig(total_steps=5_000, stop_at_return=475.0), "has already reached its return of 475"),
        (SOLVED, RunConfig(total_steps=5_000, stop_at_return=490.0), ""),
        (SOLVED, RunConfig(total_steps=5_000), ""),
    ],
)
def test_a_finished_run_gives_the_reason_for_refusing_to_resume(
    tmp_path: Path, summary: Summary, run: RunConfig, reason: str
) -> None:
    path = tmp_path / "summary.json"
    assert nothing_left(path, run) == ""
    summary.write(path)
    assert reason in nothing_left(path, run)
    assert bool(reason) == bool(nothing_left(path, run))
    # With the raised limits, training goes on; a run that is not at its end needs none.
    raised = raised_limits(path, run)
    assert bool(raised) == bool(reason)
    values = {"total_steps": run.total_steps} | {name.removeprefix("run."): text for name, text in raised.items()}
    assert nothing_left(path, build({"run": {**run.model_dump(exclude_unset=True), **values}}).run) == ""
    path.write_text("{")
    assert nothing_left(path, run) == "" and raised_limits(path, run) == {}
