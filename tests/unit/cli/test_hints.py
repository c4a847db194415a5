"""Each hint appears only beyond its threshold and names a setting to change."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.cli import hints as module
from penstock.cli.hints import hints
from penstock.config import Config
from penstock.types.statistics import CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Wait
from penstock.types.waits import WaitReason

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


def test_every_setting_that_a_hint_names_exists() -> None:
    named = set(re.findall(r"\b([a-z]+)\.([a-z_]+)\b", Path(module.__file__).read_text()))
    sections: dict[str, Any] = {name: getattr(Config(), name) for name in Config.model_fields}
    settings = {(section, name) for section, name in named if section in sections}
    assert len(settings) >= 10
    for section, name in settings:
        assert name in type(sections[section]).model_fields, f"{section}.{name}"
