import contextlib
import logging

import structlog
from structlog.testing import capture_logs

from penstock.learning.durable.progress_log import ProgressLog
from penstock.learning.report.statistics import RunStatistics
from penstock.types.evaluation import EvaluationSummary
from penstock.types.extents import Amounts, Extent
from penstock.types.run import ActorReport, Episode
from penstock.types.statistics import Timing
from tests.support.machine.timing import wait_for


def test_the_log_has_a_line_of_progress_at_intervals_also_while_nothing_is_trained() -> None:
    statistics = RunStatistics(limits=Amounts(steps=400), earlier_s=0.0)
    statistics.begin(version=3, extent=Extent(steps=100, updates=3))
    statistics.report(ActorReport(10, 0.0, (Episode(21.0, 21, environment=0, truncated=False),), Timing()))
    statistics.evaluated(EvaluationSummary(3, 100, episodes=5, return_mean=22.125, return_std=1.0), 1.0)
    statistics.waits("actors")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with (
        capture_logs() as events,
        contextlib.closing(ProgressLog(statistics.status, structlog.get_logger(), interval_s=0.01)),
    ):
        wait_for(lambda: len(events) >= 2, "two lines")
    structlog.reset_defaults()
    assert events[0] == {
        "event": "progress",
        "log_level": "info",
        "phase": "waiting",
        "env_steps": 100,
        "limit_share": 0.25,
        "env_steps_per_s": 0.0,
        "return_mean": 21.0,
        "evaluation": 22.12,
        "lag_mean": 0.0,
        "actors": 0,
        "remaining_s": None,
        "waiting_for": "actors",
    }
