"""Each hint appears only beyond its threshold and names a setting to change."""

import inspect
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from penstock.cli.screen import hints as module
from penstock.cli.screen.hints import hints
from penstock.config import Config
from penstock.types.statistics import (
    LEAST_EFFECTIVE_SHARE,
    CoordinatorStatistics,
    Curve,
    CurvePoint,
    Drops,
    LearningNumbers,
    MeanTimes,
    Returns,
    Wait,
)
from penstock.types.waits import WaitReason
from tests.docs.pages import ROOT
from tests.unit.cli.recorded_runs import NEEDY, USUAL, observed, recorded

_TUNING = (ROOT / "docs" / "OPERATIONS.md").read_text().split("## Tuning\n")[1].split("\n## ")[0]
ROWS = {
    observation.strip(): rest
    for _, observation, *rest in (line.split("|") for line in _TUNING.splitlines() if line.startswith("| "))
    if observation.strip() != "observation"
}
"""Cells of the table "Tuning" after the first one, by observation."""

AT_THE_END = {"the run was too short", "the run forgets", "the policy hardly changes", "priorities do not help"}
"""Observations that the middle of their recorded runs does not show yet."""

REMEDIES = [
    ("a best action near a bound", "policy.squash_actions", True),
    ("a policy that must be random", "evaluation.deterministic", False),
]
"""Recorded runs with the setting that the hint names, and its better value."""

NUMBERS = LearningNumbers(
    effective_sample_share=0.9,
    fresh_effective_share=0.95,
    clipped_share=0.1,
    approximate_kl=0.01,
    entropy=0.69,
    explained_variance=0.5,
    gradient_norm=0.4,
)
HEALTHY = CoordinatorStatistics(
    mode="asynchronous",
    off_policy_degree=4,
    segments_collected=1000,
    segments_trained=2000,
    batches_trained=60,
    times=MeanTimes(collect_environment_s=0.5, collect_policy_s=0.2, collect_build_s=0.1, collect_wait_s=0.2),
    waits=(Wait(WaitReason.parse("fresh segments"), 4.0, 0.4), Wait(WaitReason.parse("the replay service"), 0.1, 0.01)),
    last=NUMBERS,
    recent=NUMBERS,
    recent_batches=60,
    first_entropy=0.69,
)


def with_numbers(**numbers: float) -> CoordinatorStatistics:
    return replace(HEALTHY, recent=replace(NUMBERS, **numbers))


def waiting(reason: str, share: float, *, actors_wait_s: float = 0.2, degree: int = 4) -> CoordinatorStatistics:
    times = replace(HEALTHY.times, collect_wait_s=actors_wait_s)
    return replace(HEALTHY, waits=(Wait(WaitReason.parse(reason), 1.0, share),), times=times, off_policy_degree=degree)


def test_a_healthy_run_gets_no_hint() -> None:
    assert hints(HEALTHY) == []


@pytest.mark.parametrize(
    ("statistics", "text"),
    [
        (with_numbers(fresh_effective_share=0.29, effective_sample_share=0.1), "sampling.off_policy_degree (now 4)"),
        (replace(with_numbers(fresh_effective_share=0.29), off_policy_degree=0), "sampling.publish_interval"),
        (with_numbers(effective_sample_share=0.29), "sampling.half_life"),
        (with_numbers(clipped_share=0.51), "51% of the ratios are clipped: lower ppo.learning_rate"),
        (with_numbers(actions_at_bound=0.61), "61% of the actions of an element are at one bound, "),
        (with_numbers(actions_at_bound=1.0), "set policy.squash_actions"),
        (with_numbers(approximate_kl=5e-5), "the policy hardly changes"),
        (replace(with_numbers(approximate_kl=-5e-5, entropy=0.005), first_entropy=-0.004), "the policy hardly changes"),
        (with_numbers(explained_variance=-0.01), "policy.normalise_returns"),
        (waiting("fresh segments", 0.51), "raise train.actors"),
        (waiting("fresh segments of shard 1", 0.51), "raise train.actors"),
        (waiting("fresh segments", 0.6, actors_wait_s=0.9), "raise sampling.off_policy_degree (now 4)"),
        (waiting("fresh segments", 0.6, actors_wait_s=0.9, degree=0), "because they alternate"),
        (waiting("the replay service", 0.51), "51% of the time for the replay service"),
        (replace(HEALTHY, drops=Drops(late_segments=101)), "10% of the fresh segments arrived too late"),
        (replace(HEALTHY, drops=Drops(overwritten_priorities=201)), "raise replay.capacity_bytes"),
        (replace(HEALTHY, drops=Drops(refused_segments=1)), "refused"),
        (replace(HEALTHY, drops=Drops(refused_steps=2)), "2 gradient steps were refused"),
        (
            replace(HEALTHY, drops=Drops(unsound_rows=3, left_out_values=1)),
            "4 values were a million times larger than the others",
        ),
    ],
)
def test_an_unusual_statistic_yields_a_hint_with_a_remedy(statistics: CoordinatorStatistics, text: str) -> None:
    (hint,) = hints(statistics)
    assert text in hint.text


@pytest.mark.parametrize(
    "statistics",
    [
        with_numbers(fresh_effective_share=0.31, effective_sample_share=0.31, clipped_share=0.49),
        with_numbers(approximate_kl=2e-4),
        with_numbers(approximate_kl=5e-5, entropy=0.6),
        with_numbers(explained_variance=0.0),
        with_numbers(actions_at_bound=0.6),
        waiting("fresh segments", 0.49),
        replace(HEALTHY, drops=Drops(late_segments=100, overwritten_priorities=200, refunded_segments=900)),
        # An unknown value yields no hint.
        replace(HEALTHY, recent=LearningNumbers()),
    ],
)
def test_statistics_just_within_their_thresholds_yield_no_hint(statistics: CoordinatorStatistics) -> None:
    assert hints(statistics) == []


def test_the_first_batches_yield_hints_only_for_broken_values() -> None:
    early = replace(with_numbers(clipped_share=0.9, explained_variance=-5.0), recent_batches=module.ENOUGH_BATCHES - 1)
    assert hints(early) == []
    assert len(hints(replace(early, drops=Drops(refused_segments=3)))) == 1
    assert hints(CoordinatorStatistics("synchronous", 0)) == []


@pytest.mark.parametrize("task", USUAL)
def test_no_usual_task_gets_a_hint(task: str) -> None:
    *during, end = recorded(task)
    found = [hint for moment in during for hint in hints(moment.statistics, moment.share_done)]
    found += hints(end.statistics, end.share_done, ended=True)
    assert found == []


@pytest.mark.parametrize("run", NEEDY)
def test_a_run_that_needs_a_hint_gets_it(run: str) -> None:
    observation, _ = NEEDY[run]
    *during, end = recorded(run)
    found = [hint for moment in during for hint in hints(moment.statistics, moment.share_done)]
    found += hints(end.statistics, end.share_done, ended=True)
    assert observation in {hint.observation for hint in found}


@pytest.mark.parametrize("run", [name for name, (observation, _) in NEEDY.items() if observation not in AT_THE_END])
def test_a_run_that_needs_a_hint_gets_it_before_its_end(run: str) -> None:
    observation, _ = NEEDY[run]
    _, later, _ = recorded(run)
    assert observation in {hint.observation for hint in hints(later.statistics, later.share_done)}


@pytest.mark.nightly
@pytest.mark.parametrize(("run", "setting", "value"), REMEDIES, ids=[run for run, _, _ in REMEDIES])
def test_the_setting_that_a_hint_names_improves_the_last_evaluations(run: str, setting: str, value: object) -> None:
    observation, task = NEEDY[run]
    section, _, name = setting.partition(".")
    before, after = recorded(run)[-1], observed(replace(task, settings={section: {name: value}}).config)[-1]
    (hint,) = [each for each in hints(before.statistics, before.share_done) if each.observation == observation]
    assert setting in hint.text
    improved, worse = ([point.evaluation.mean for point in end.statistics.curve.points[-3:]] for end in (after, before))
    assert min(improved) > max(worse)
    assert observation not in {each.observation for each in hints(after.statistics, after.share_done)}


def curve_of(run: dict[str, Any]) -> CoordinatorStatistics:
    """Returns the curve of a published run, of whose evaluations only the means are known: none of them is chance."""
    points = [
        CurvePoint(steps, Returns(20, mean, 0.0)) for steps, mean in zip(run["env_steps"], run["returns"], strict=True)
    ]
    returns = sorted((point.evaluation for point in points), key=lambda returns: returns.mean)
    return CoordinatorStatistics(
        "asynchronous", 1, curve=Curve(points=tuple(points[-10:]), best=returns[-1], worst=returns[0])
    )


def test_of_published_runs_those_that_fall_and_no_others_forget() -> None:
    runs = json.loads((ROOT / "results" / "defaults.json").read_text())
    forgot = {
        (run["task"], run["setting"], run["seed"])
        for run in runs
        if "the run forgets" in {hint.observation for hint in hints(curve_of(run), 1.0, ended=True)}
    }
    fell = {
        (run["task"], run["setting"], run["seed"])
        for run in runs
        if max(run["returns"]) - max(run["returns"][-3:]) > 0.3 * (max(run["returns"]) - min(run["returns"]))
    }
    assert forgot == fell and 0 < len(fell) < len(runs) / 10
    assert not any(setting == "defaults" for _, setting, _ in fell)


@pytest.mark.nightly
def test_a_recorded_run_is_repeated() -> None:
    name = "equal rewards of single steps"
    observation, task = NEEDY[name]
    end = observed(task.config)[-1]
    assert (end.share_done, end.statistics.curve) == (
        recorded(name)[-1].share_done,
        recorded(name)[-1].statistics.curve,
    )
    assert observation in {hint.observation for hint in hints(end.statistics, end.share_done)}


def test_every_hint_is_a_row_of_the_tuning_table() -> None:
    unhinted = {"actors are gated", "the learner waits for the evaluator", "everything is busy and too slow"}
    assert set(ROWS) - unhinted == {observation for observation, _ in module._RULES}


@pytest.mark.parametrize(("observation", "rule"), module._RULES)
def test_the_settings_of_a_hint_exist_and_are_those_of_its_row(observation: str, rule: Any) -> None:
    texts = re.sub(r"{[^}]*}", "", " ".join(re.findall(r'f?"([^"]*)"', inspect.getsource(rule))))
    for section, name in re.findall(rf"\b({'|'.join(Config.model_fields)})\.([a-z_]+)\b", texts):
        assert name in type(getattr(Config(), section)).model_fields
        change = ROWS[observation][1]
        assert f"`{section}.{name}" in change or change.strip().startswith("[Penstock")


@pytest.mark.parametrize(
    ("observation", "threshold"),
    [
        ("fresh data is too old", f"below {LEAST_EFFECTIVE_SHARE:.0%}"),
        ("replayed data is too old", f"below {LEAST_EFFECTIVE_SHARE:.0%}"),
        ("the policy changes too much", f"above {module.MOST_CLIPPED:.0%}"),
        ("the policy hardly changes", f"below {module.LEAST_KL:g}"),
        ("actions stay at a bound", f"above {module.MOST_AT_BOUND:.0%}"),
        ("priorities do not help", f"above +{module.MOST_GAIN_LOST:.0%}"),
        ("the learner is starved, actors are busy", f"above {module.MOST_WAITED:.0%}"),
        ("both wait, because they alternate", f"above {module.MOST_WAITED:.0%}"),
        ("segments arrive late", f"above {module.MOST_LATE:.0%}"),
        ("priorities arrive too late", f"above {module.MOST_OVERWRITTEN:.0%}"),
        ("returns do not rise", f"by {module.SIGNIFICANT:.0f} standard errors, after {module.LATE:.0%} of the run"),
        ("returns do not rise", f"after {module.LATER:.0%} if the `entropy` is unchanged"),
        ("the run forgets", f"by {module.MOST_FORGOTTEN:.0%} of the rise"),
        ("the run was too short", f"by {module.LEAST_RISE:.0%} of the rise"),
    ],
)
def test_the_tuning_table_has_the_threshold_of_a_hint(observation: str, threshold: str) -> None:
    assert threshold in ROWS[observation][0]
