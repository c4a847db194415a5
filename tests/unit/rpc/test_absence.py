import pytest
import structlog

from penstock.rpc.clients.absence import Absence


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_an_absence_is_logged_after_three_seconds_and_then_every_minute(clock: Clock) -> None:
    absence, noted = Absence(clock=clock), []
    absence.began()
    for second in range(200):
        clock.now = float(second)
        if absence.is_due:
            absence.note("nothing listens")
            noted.append(second)
    assert noted == [3, 63, 123, 183]


def test_the_return_is_logged_if_the_absence_was(clock: Clock) -> None:
    structlog.configure()
    absence = Absence(clock=clock)
    absence.began()
    with structlog.testing.capture_logs() as events:
        absence.ended("the learner")
        absence.began()
        absence.note("nothing listens")
        absence.ended("the learner")
        absence.ended("the learner")
    structlog.reset_defaults()
    assert [event["event"] for event in events] == ["waiting for service", "service reached"]


def test_the_time_to_give_up_counts_from_the_last_answer(clock: Clock) -> None:
    absence = Absence(600.0, clock)
    clock.now = 599.0
    assert not absence.is_over
    absence.heard()
    absence.began()
    over = []
    for clock.now in (1198.0, 1199.0):
        over.append(absence.is_over)
    assert over == [False, True]
    assert absence.seconds == 600.0


def test_without_a_limit_a_client_never_gives_up(clock: Clock) -> None:
    absence = Absence(clock=clock)
    clock.now = 1e9
    assert not absence.is_over
