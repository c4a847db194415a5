import io

import pytest
from rich.console import Console

from penstock.cli.screen.coordination import in_short, in_words, sections, show_end, summary_lines
from penstock.cli.screen.lines import show
from penstock.runs.summary import Summary
from penstock.types.extents import RunLimit
from penstock.types.statistics import Ages, CoordinatorStatistics, Drops, LearningNumbers, MeanTimes, Wait
from penstock.types.status import Stopped
from penstock.types.waits import WaitReason
from tests.unit.cli.recorded_runs import recorded

STATISTICS = CoordinatorStatistics(
    mode="asynchronous",
    off_policy_degree=2,
    alpha=0.6,
    segments_collected=168,
    batches_collected=10.5,
    segments_trained=320,
    batches_trained=1_010,
    evaluations=3,
    lag=Ages(1.25, 1.0, 2),
    staleness=Ages(12.0, 10.0, 64),
    times=MeanTimes(0.08, 0.03, 0.01, 0.04, 0.002, 0.045, 1.5),
    waits=(
        Wait(WaitReason.parse("fresh segments"), 3.0, 0.6),
        Wait(WaitReason.parse("the replay service"), 0.001, 0.0002),
    ),
    drops=Drops(1_200, 3, 4, 5),
    last=LearningNumbers(0.5, 0.75, 0.125, 0.01, 0.6, None, 0.4, 0.15),
    recent=LearningNumbers(0.91, 0.97, 0.12, 0.004, 0.61, 0.7, 0.5),
    recent_batches=100,
    first_entropy=0.693,
)


def shown(statistics: CoordinatorStatistics) -> str:
    file = io.StringIO()
    show(Console(file=file, width=80), sections(statistics))
    return file.getvalue()


def test_the_sections_show_every_statistic() -> None:
    text = shown(STATISTICS)
    for part in (
        "asynchronous: collection up to 2 batches ahead of training",
        "10.5 collected, 1,010 trained, 3 evaluations",
        "by priority (alpha 0.6) and age; priorities lower the variance of the gradient by 15%",
        "1.2 versions now, 1.0 on average, 2 at most",
        "12.0 versions now, 10.0 on average, 64 at most",
        "120 ms of actor time per batch (environment 80 ms, policy 30 ms, building 10 ms); actors wait 25% of the time",
        "2 ms per batch; of the learner's time: fresh segments 60%\n",
        "45 ms per batch",
        "1.50 s",
        "1,200 segments late, 3 refused, 4 given back, 5 priorities too late",
        "mean of 100",
        "0.693 at the start",
        "hint         the learner waited 60%",
    ):
        assert part in text, part
    rows = {" ".join(line.split()) for line in text.splitlines()}
    assert "effective sample share 50% 91% effective sample size / samples" in rows
    assert "explained variance - 0.7 at most 1" in rows


def test_a_run_without_a_batch_shows_dashes_and_no_table() -> None:
    text = shown(CoordinatorStatistics("synchronous", 0))
    assert "synchronous: collection and training alternate" in text
    assert "clipped" not in text and "hint" not in text and "None" not in text
    assert in_short(CoordinatorStatistics("synchronous", 0)) == []


def test_one_batch_ahead_is_written_in_the_singular() -> None:
    assert in_words(CoordinatorStatistics("asynchronous", 1)) == (
        "asynchronous: collection up to 1 batch ahead of training"
    )


def test_an_ended_run_is_described_in_two_lines() -> None:
    learning, pace = (line.plain for line in in_short(STATISTICS))
    assert learning == (
        "learning     effective sample share 91%, clipped ratios 12%, KL 0.004, entropy 0.61, explained variance 0.7"
    )
    assert pace == "pace         asynchronous, lag 1.0, staleness 10.0 versions; per batch 2 ms waiting, 45 ms training"


@pytest.mark.parametrize(
    ("alpha", "gain", "line"),
    [
        (0.0, None, "by age alone\n"),
        (0.0, -0.034, "by age alone; priorities raise the variance of the gradient by 3%\n"),
        (0.6, None, "by priority (alpha 0.6) and age\n"),
    ],
)
def test_the_draw_and_the_gain_of_priorities_are_shown(alpha: float, gain: float | None, line: str) -> None:
    last = LearningNumbers(priority_gain=gain)
    assert f"draw         {line}" in shown(CoordinatorStatistics("asynchronous", 1, alpha, last=last))


def test_the_end_of_a_run_has_the_hints_on_its_length_and_an_interrupted_one_has_not() -> None:
    *_, end = recorded("a short run")
    ends: tuple[tuple[Stopped, bool], ...] = (("total_steps", True), ("interrupted", False))
    for stopped, given in ends:
        limit = RunLimit("steps", 6000, 6000)
        summary = Summary(
            *("run", "CartPole-v1", 1, 6000, 9.0, 700.0, None, None, None, 12, 1.0, 1.0),
            stopped=stopped,
            statistics=end.statistics,
            limit=limit,
        )
        text = "\n".join(line.plain for line in summary_lines(summary))
        assert ("hint         evaluations still rose when the run ended" in text) is given


def test_the_end_of_a_verbose_run_is_its_status(capsys: pytest.CaptureFixture[str]) -> None:
    summary = Summary(
        *("my run", "CartPole-v1", 1, 6000, 9.0, 700.0, None, None, None, 12, 1.0, 1.0),
        stopped="total_steps",
        statistics=STATISTICS,
    )
    show_end(Console(highlight=False), summary, penstock="penstock", verbose=True)
    printed = capsys.readouterr().out
    for line in summary_lines(summary):
        assert f"{line.plain}\n" in printed
    assert printed.endswith(
        "film   penstock evaluate 'my run' --record-video\n"
        "plot   penstock plot 'my run'\nmore   penstock status 'my run'\n"
    )
    show_end(Console(highlight=False), summary, penstock="penstock")
    assert "pace " not in capsys.readouterr().out
