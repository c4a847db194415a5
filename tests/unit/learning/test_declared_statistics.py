"""Every declared statistic reaches the metrics, the status, the summary, the journal and the display."""

import dataclasses
import io
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY
from rich.console import Console

from penstock.cli.screen.coordination import sections
from penstock.learning.durable.records import Record
from penstock.learning.report.session_totals import SessionTotals
from penstock.runs.summary import Summary
from penstock.telemetry import metrics
from penstock.types.evaluation import EvaluationSummary
from penstock.types.records import plain, record_of
from penstock.types.run import ActorReport
from penstock.types.statistics import (
    CoordinatorStatistics,
    Drops,
    LearningNumbers,
    MeanTimes,
    Timing,
    Wait,
    declared,
)
from penstock.types.status import RunStatus
from penstock.types.waits import Awaited, WaitReason
from penstock.wire.run import decode_report, decode_status, encode_report, encode_status
from tests.support.segments.segments import PLAN
from tests.support.segments.statistics import TRAINING, counted_batch
from tests.support.training.training import make_batch, make_learner

SERVICES = Path(metrics.__file__).parents[1]
DECLARED = [(kind, name) for kind in (MeanTimes, Drops, LearningNumbers) for name in declared(kind)]
NOT_RECORDED = {
    # Fields of the end of the run and of the display, and fields with another name in the record.
    *("phase", "environment_id", "limit", "elapsed_s", "last_evaluation", "best_evaluation", "lag_mean"),
    *("replay_capacity", "actors", "remaining_s", "waiting_for", "coordinator", "notices", "actor_states"),
    *("nodes", "wanted_actors", "missing_actors", "info_metrics"),
}


def filled(kind: Any, numbers: Any) -> Any:
    """Returns a value of this type in which every number differs."""
    if isinstance(kind, types.UnionType):
        [kind] = [each for each in typing.get_args(kind) if each is not types.NoneType]
    if kind is WaitReason:
        return WaitReason(Awaited.FRESH_SEGMENTS, next(numbers))
    if typing.get_origin(kind) is tuple:
        return (filled(typing.get_args(kind)[0], numbers),)
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)[0]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{each.name: filled(hints[each.name], numbers) for each in dataclasses.fields(kind)})
    return str(next(numbers)) if kind is str else bool(next(numbers)) if kind is bool else kind(next(numbers))


def some(kind: Any) -> Any:
    """Returns a record with a different value in every field."""
    return filled(kind, iter(range(1, 1000)))


def test_every_field_of_the_status_is_sent_and_received() -> None:
    sent = some(RunStatus)
    message = encode_status(sent)
    assert decode_status(type(message).FromString(message.SerializeToString())) == sent


def test_every_field_of_a_report_is_sent_and_received() -> None:
    sent = some(ActorReport)
    message = encode_report(sent)
    assert decode_report(type(message).FromString(message.SerializeToString())) == sent


def test_every_field_of_the_summary_is_written_and_read(tmp_path: Path) -> None:
    summary = some(Summary)
    summary.write(tmp_path / "summary.json")
    assert Summary.read(tmp_path / "summary.json") == summary


def test_a_record_with_an_unknown_name_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        record_of(Wait, {**plain(Wait(WaitReason(Awaited.ACTORS), 1.0, 0.5)), "colour": 1})


@pytest.mark.parametrize("text", ["fresh segments", "fresh segments of shard 12", "actors", "the replay service"])
def test_a_wait_reason_is_read_from_its_text(text: str) -> None:
    assert str(WaitReason.parse(text)) == text


def test_a_wait_reason_of_another_version_counts_for_the_replay_service() -> None:
    assert WaitReason.parse("spring of shard 1") == WaitReason(Awaited.REPLAY_SERVICE, 1)


@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_a_declared_statistic_has_a_metric(kind: type, name: str) -> None:
    assert declared(kind)[name].metric in {family.name for family in REGISTRY.collect()}


@pytest.mark.parametrize("name", declared(LearningNumbers))
def test_a_learning_statistic_is_exported_by_its_name(name: str) -> None:
    session = SessionTotals(lambda: 0.0)
    training = dataclasses.replace(TRAINING, learning=LearningNumbers(**{name: 0.125}))
    session.trained(counted_batch(), training, fresh_steps=1, train_s=0.1)
    assert REGISTRY.get_sample_value("penstock_learner_statistic", {"name": name}) == 0.125


def test_every_learning_statistic_is_measured() -> None:
    # Its actions have bounds.
    task = "Pendulum-v1"
    learner, batch = make_learner(task, epochs=1, minibatches=1), make_batch(task, fresh=2)
    for number in range(1, 9):
        learning = plain(learner.train(batch, 0.0).statistics.learning)
        # The 8th batch is the first that is measured.
        assert (learning["priority_gain"] is None) == (number < 8)
    assert None not in learning.values()


def test_every_activity_of_actors_is_in_one_mean_time() -> None:
    activities = [each.activity for each in declared(MeanTimes).values() if each.activity]
    assert sorted(activities) == sorted(Timing().by_activity())


def test_every_mean_time_is_computed_from_the_totals() -> None:
    session = SessionTotals(lambda: 0.0)
    session.set_plan(PLAN)
    session.report(some(ActorReport))
    session.waited(WaitReason(Awaited.ACTORS), 1.0)
    session.called_back(1.0)
    session.trained(counted_batch(), TRAINING, fresh_steps=10, train_s=1.0)
    session.evaluated(some(EvaluationSummary), 1.0)
    statistics = session.statistics()
    assert statistics is not None and None not in plain(statistics.times).values()


@pytest.mark.parametrize(("kind", "name"), DECLARED)
def test_a_declared_statistic_is_displayed(kind: type, name: str) -> None:
    file = io.StringIO()
    Console(file=file, width=80).print(sections(some(CoordinatorStatistics)), soft_wrap=True)
    each = declared(kind)[name]
    shown = "actors wait" if each.activity == "waiting" else each.label
    assert shown in file.getvalue()


def test_the_journal_has_every_field_of_the_status_that_is_not_excluded() -> None:
    statistics = dataclasses.replace(TRAINING, own={"share": 0.25})
    record = Record.of_training(some(RunStatus), statistics, some(MeanTimes), 1.0, ended_return=2.0)
    names = {"env_steps", "variants", *record.values}
    assert record.values["loss_share"] == 0.25
    assert {each.name for each in dataclasses.fields(RunStatus)} - names == NOT_RECORDED
    assert {*plain(TRAINING.learning), *plain(TRAINING)} - {"learning", "own"} <= names
    assert set(declared(MeanTimes)) <= names
    assert {"replayed_age_mean", "replayed_age_90", "drawn_priority"} <= names


def test_every_metric_is_set_by_some_code() -> None:
    text = "\n".join(path.read_text() for path in SERVICES.rglob("*.py") if path.name != "metrics.py")
    names = [name for name, value in vars(metrics).items() if name.isupper() and hasattr(value, "collect")]
    assert names
    used = set(re.findall(r"\bmetrics\.(\w+)", text))
    used |= set(re.findall(r"\b(\w+)\.labels\(", Path(metrics.__file__).read_text()))
    assert [name for name in names if name not in used] == []
