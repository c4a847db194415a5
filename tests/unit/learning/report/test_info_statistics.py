"""Numbers of the infos of training episodes and of evaluations, in the status, the records and the metrics."""

import math

import pytest
from prometheus_client import REGISTRY

from penstock.cli.screen.run_facts import fact_lines, status_line
from penstock.learning.durable.records import Record
from penstock.learning.report.info_statistics import InfoStatistics
from penstock.learning.report.statistics import RunStatistics
from penstock.runs.metrics import tag_of
from penstock.types.evaluation import EvaluationSummary, InfoMetric
from penstock.types.extents import Amounts, Extent
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import MeanTimes, Timing
from penstock.wire import run as wire
from tests.support.segments.statistics import TRAINING, counted_batch


def report(values: list[tuple[float, ...]], keys: tuple[str, ...] = ("success", "distance")) -> ActorReport:
    episodes = tuple(Episode(1.0, 5, 0, truncated=False, info=row) for row in values)
    return ActorReport(10, 1.0, episodes, Timing(), info_metrics=keys)


def test_means_are_of_the_last_hundred_episodes_with_a_number() -> None:
    found = InfoStatistics(["success", "distance"])
    assert found.recent() == (InfoMetric("success"), InfoMetric("distance"))
    found.ended(report([(0.0, math.nan)] * 30))
    found.ended(report([(1.0, 2.0)] * 90))
    assert found.recent() == (InfoMetric("success", 100, 0.9, 0), InfoMetric("distance", 90, 2.0, 30))


def test_keys_of_an_actor_with_other_settings_are_matched_by_name() -> None:
    found = InfoStatistics(["success"])
    found.ended(report([(7.0, 1.0)], ("other", "success")))
    found.ended(report([()], ()))
    found.ended(report([], ()))
    assert found.recent() == (InfoMetric("success", 1, 1.0, 1),)


def test_they_are_in_the_status_the_records_and_the_metrics() -> None:
    statistics = RunStatistics(limits=Amounts(steps=100), earlier_s=0.0, info_metrics=["success", "final.x"])
    statistics.report(report([(1.0, 3.0), (0.0, math.nan)], ("success", "final.x")))
    statistics.trained(counted_batch(), TRAINING, version=1, extent=Extent(10), samples_per_insert=1.0, train_s=0.1)
    evaluation = EvaluationSummary(1, 10, 2, 5.0, 0.0, info_metrics=(InfoMetric("success", 2, 1.0),))
    statistics.evaluated(evaluation, 1.0)
    status = statistics.status()
    assert wire.decode_status(wire.encode_status(status)).info_metrics == status.info_metrics
    assert status.last_evaluation == evaluation
    assert ("info", "success: 0.5, evaluation 1 | final.x: 3") in fact_lines(status)
    assert " | success 0.5, evaluation 1 | final.x 3 | " in status_line(status)

    trained = Record.of_training(status, TRAINING, MeanTimes(), 1.0, ended_return=None)
    assert (trained.values["info_success"], trained.values["info_final.x"]) == (0.5, 3.0)
    evaluated = Record.of_evaluation(evaluation, 1.0, final=False)
    assert evaluated.values["info_success"] == 1.0 and "info_metrics" not in evaluated.values
    assert (tag_of("training", "info_success"), tag_of("evaluation", "info_success")) == (
        "info/success",
        "evaluation/success",
    )

    def metric(name: str, key: str) -> float | None:
        return REGISTRY.get_sample_value(f"penstock_{name}", {"key": key})

    assert (metric("episode_info", "success"), metric("evaluation_info", "success")) == (0.5, 1.0)
    assert metric("episode_info_missing_total", "final.x") == 1.0


@pytest.mark.parametrize(
    ("metric", "text"),
    [(InfoMetric("a", 3, 0.25), "a 0.25"), (InfoMetric("a", 0, None, 2), "a - (2 episodes without it)")],
)
def test_they_are_shown_with_what_is_missing(metric: InfoMetric, text: str) -> None:
    assert str(metric) == text
