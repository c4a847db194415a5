from penstock.cli.screen.replay_figures import replay_figures
from penstock.types.statistics import CoordinatorStatistics, LearningNumbers, Replayed

STATISTICS = CoordinatorStatistics(
    "asynchronous",
    1,
    last=LearningNumbers(priority_gain=-0.034),
    recent=LearningNumbers(effective_sample_share=0.926),
    replayed=Replayed(3.14, 9.06, 1.77),
)


def test_the_figures_have_their_units() -> None:
    figures = replay_figures(8.17, STATISTICS)
    assert figures is not None
    assert figures.effective == "93%"
    assert figures.line == (
        "8.2 uses per segment | age 3.1, 90% within 9.1 versions | priority 1.8 x average"
        " | priorities raise the variance of the gradient by 3%"
    )


def test_unknown_figures_are_dashes() -> None:
    figures = replay_figures(1.0, CoordinatorStatistics("asynchronous", 1, replayed=Replayed(3.0, 9.0)))
    assert figures is not None
    assert (figures.effective, figures.priority, figures.variance) == ("-", "-", "-")
    assert figures.line.endswith("priority - average")


def test_a_run_that_has_replayed_nothing_has_no_figures() -> None:
    assert replay_figures(1.0, None) is None
    assert replay_figures(1.0, CoordinatorStatistics("asynchronous", 1, last=STATISTICS.last)) is None
