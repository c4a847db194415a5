"""Returns by environment variant: in the status, the metrics, the journal and the summary."""

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.cli.screen.run_facts import variant_lines
from penstock.errors import ConfigurationError
from penstock.learning.durable.journal import Journal
from penstock.learning.durable.records import Record
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.report.statistics import RunStatistics
from penstock.runs.summary import EvaluationOutcome, Summary, VariantOutcome
from penstock.types.evaluation import EvaluationResult, EvaluationSummary, VariantReturns
from penstock.types.extents import Amounts, Extent
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import MeanTimes, Timing
from penstock.types.status import RunStatus, VariantStatus
from penstock.wire.run import decode_status, encode_status
from tests.support.segments.segments import PLAN
from tests.support.segments.statistics import TRAINING, counted_batch
from tests.support.services.servers import sample

EVALUATION = EvaluationSummary(3, 900, 4, 1.5, 0.5, (VariantReturns(2, 1.0, 0.0), VariantReturns(2, 2.0, 0.25, 1)))
SUMMARY = Summary(
    "run", "E-v0", 0, 10, 1.0, 10.0, EvaluationOutcome(4, 1.5, 0.5), None, None, 3, 1.0, 2.0, "total_steps"
)


def report(*returns: float) -> ActorReport:
    return ActorReport(10, 0.0, tuple(Episode(value, 5, 0, False) for value in returns), Timing(0.1, 0.1, 0.1, 0.1))


def statistics(*variants: str) -> RunStatistics:
    return RunStatistics(limits=Amounts(steps=1000), earlier_s=0.0, variants=variants)


def test_returns_are_counted_for_the_reporting_variant_and_for_the_run() -> None:
    run = statistics("g=1", "g=2")
    run.report(report(1.0, 3.0), 0)
    run.report(report(), 1)
    assert run.status().variants == (VariantStatus("g=1", 2, 2.0), VariantStatus("g=2", 0, None, number=1))
    run.report(report(8.0), 1)
    assert run.status().variants == (VariantStatus("g=1", 2, 2.0), VariantStatus("g=2", 1, 8.0, number=1))
    assert (run.status().episodes, run.status().return_mean) == (3, 4.0)


def test_a_variants_mean_is_over_its_own_last_100_episodes() -> None:
    run = statistics("g=1", "g=2")
    run.report(report(5.0), 1)
    run.report(report(*[0.0] * 60, *[1.0] * 50, *[2.0] * 50), 0)
    assert run.status().variants == (VariantStatus("g=1", 160, 1.5), VariantStatus("g=2", 1, 5.0, number=1))


def test_a_run_without_variants_has_none_in_its_status() -> None:
    run = statistics()
    run.report(report(1.0))
    assert run.status().variants == ()


def test_shares_of_collection_are_those_of_the_plan_and_of_the_trained_segments() -> None:
    run = statistics("g=1", "g=2")
    before = [sample("penstock_learner_fresh_segments_total", variant=variant) for variant in "01"]
    run.set_plan(replace(PLAN, slot_weights=(3.0, 1.0), least_share=0.2))
    assert [each.planned_share for each in run.status().variants] == [0.75, 0.25]
    assert [sample("penstock_learner_collection_share", variant=variant) for variant in "01"] == [0.75, 0.25]
    assert [each.fresh_share for each in run.status().variants] == [None, None]
    train(run, slots=[0, 0, 2, 3])
    train(run, slots=[1, 4, 6, 8])
    assert [each.fresh_share for each in run.status().variants] == [0.75, 0.25]
    after = [sample("penstock_learner_fresh_segments_total", variant=variant) for variant in "01"]
    assert [now - then for now, then in zip(after, before, strict=True)] == [6, 2]


def test_a_run_without_variants_collects_everything_in_variant_0() -> None:
    run = statistics()
    run.set_plan(PLAN)
    assert sample("penstock_learner_collection_share", variant="0") == 1.0
    before = sample("penstock_learner_fresh_segments_total", variant="0")
    train(run, slots=[0, 1, 2])
    # An older replay service reports no slots.
    train(run, slots=[])
    assert sample("penstock_learner_fresh_segments_total", variant="0") == before + 3
    assert run.status().variants == ()


def train(run: RunStatistics, slots: list[int]) -> None:
    batch = counted_batch()
    batch = replace(batch, head=replace(batch.head, slots=np.array(slots, np.uint32)))
    run.trained(batch, TRAINING, version=1, extent=Extent(steps=10, updates=1), samples_per_insert=1.0, train_s=0.1)


def test_returns_of_variants_are_metrics() -> None:
    before = sample("penstock_variant_episodes_total", variant="1")
    run = statistics("g=1", "g=2")
    run.report(report(4.0, 6.0), 1)
    run.evaluated(EVALUATION, 0.5)
    assert sample("penstock_variant_episodes_total", variant="1") == before + 2
    assert sample("penstock_variant_episode_return", variant="1") == 5.0
    assert sample("penstock_variant_evaluation_return", variant="0") == 1.0
    assert sample("penstock_variant_evaluation_return", variant="1") == 2.0


def test_an_evaluation_without_episodes_in_a_variant_omits_that_variant() -> None:
    result = EvaluationResult(1, 1, (1.0, 2.0), (1, 1), 0.1)
    assert result.by_variant(range(3)) == (VariantReturns(1, 1.0, 0.0), VariantReturns(1, 2.0, 0.0, 1))


@pytest.mark.parametrize("evaluation", [None, EVALUATION, dataclasses.replace(EVALUATION, variants=())])
def test_a_status_with_variants_is_received_as_sent(evaluation: EvaluationSummary | None) -> None:
    variants = (VariantStatus("g=1", 7, -3.5, 0.75, 0.5), VariantStatus("plain"))
    status = RunStatus(last_evaluation=evaluation, best_evaluation=evaluation, variants=variants)
    message = encode_status(status)
    assert decode_status(type(message).FromString(message.SerializeToString())) == status


def test_the_journal_records_variants_if_the_run_has_any(tmp_path: Path) -> None:
    notices: list[str] = []
    journal = Journal(tmp_path / "metrics.jsonl", writes=RetriedWrites(notices.append), notice=notices.append)
    variants = (VariantStatus("g=1", 7, -3.5, 0.75, 0.5),)
    journal.write(Record.of_training(RunStatus(variants=variants), TRAINING, MeanTimes(), 1.0, ended_return=None))
    journal.write(Record.of_training(RunStatus(), TRAINING, MeanTimes(), 1.0, ended_return=None))
    journal.write(Record.of_evaluation(EVALUATION, 1.0, final=False))
    journal.write(Record.of_evaluation(dataclasses.replace(EVALUATION, variants=()), 1.0, final=True))
    with_variants, without, evaluated, evaluated_without = map(json.loads, (tmp_path / "metrics.jsonl").open())
    assert with_variants["variants"] == [
        {"arguments": "g=1", "episodes": 7, "return_mean": -3.5, "planned_share": 0.75, "fresh_share": 0.5, "number": 0}
    ]
    assert evaluated["variants"][1] == {"episodes": 2, "return_mean": 2.0, "return_std": 0.25, "number": 1}
    assert "variants" not in without and "variants" not in evaluated_without


def test_a_line_is_shown_for_each_variant() -> None:
    variants = (VariantStatus("g=1", 7, -3.5, 0.75, 0.5), VariantStatus("g=2", number=1))
    status = RunStatus(last_evaluation=EVALUATION, variants=variants)
    assert variant_lines(status) == [
        "variant 0 (g=1): return -3.50 | evaluation 1.00 ± 0.00 | 7 episodes | 50% of collection, 75% by plan",
        "variant 1 (g=2): return - | evaluation 2.00 ± 0.25 | 0 episodes",
    ]
    assert variant_lines(RunStatus()) == []


def test_a_summary_with_variants_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    outcomes = (VariantOutcome("g=1", 9, -2.5, EvaluationOutcome(2, 1.0, 0.0)), VariantOutcome("g=2", 0, None, None, 1))
    for summary in (SUMMARY, dataclasses.replace(SUMMARY, variants=outcomes)):
        summary.write(path)
        assert Summary.read(path) == summary


def test_a_summary_of_a_release_without_variants_is_read(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    values = json.loads(path.read_text())
    del values["variants"]
    path.write_text(json.dumps(values))
    assert Summary.read(path) == SUMMARY


def test_a_summary_with_invalid_variants_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    SUMMARY.write(path)
    path.write_text(path.read_text().replace('"variants": []', '"variants": [{"arguments": "g=1"}]'))
    with pytest.raises(ConfigurationError, match=r"can't read the summary"):
        Summary.read(path)
