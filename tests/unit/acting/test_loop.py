"""The actor's loop with real environments and a real collector. Run and sinks are in memory."""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import tests.support.environments.failing  # noqa: F401 - registers Failing-v0
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.replaceable import ReplaceableEnvironments
from penstock.acting.environments.vectors import Environments
from penstock.acting.loop import ActorParts, act
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from penstock.errors import ConfigurationError, EnvironmentFailed, PlaceLost, RunFinished
from penstock.types.replay import Grant, Window
from penstock.types.run import ActorReport, Assignment, EnvironmentFault, Weights
from penstock.types.spaces import EnvironmentSpec
from tests.support.environments.made import make_environments
from tests.support.environments.tiny import assignment, spec_of
from tests.support.training.policies import fresh_weights

UNROLL_LENGTH, COUNT = 4, 2
WINDOW_STEPS = UNROLL_LENGTH * COUNT
PLACE = assignment(40, 41)
SPEC = spec_of("Failing-v0")
WEIGHTS = fresh_weights(SPEC)


class MemorySink:
    """A sink with a list of grants that records the windows."""

    def __init__(self, outside: "Outside", grants: Sequence[Grant]) -> None:
        self._outside, self._grants = outside, deque(grants)
        self.windows: list[Window] = []
        self.ends: list[str] = []

    def next_grant(self, timeout_s: float) -> Grant | None:
        time.sleep(self._outside.grant_delay_s)
        if self._grants:
            return self._grants.popleft()
        self._outside.out_of_grants()
        return None

    def send(self, window: Window) -> None:
        self.windows.append(window)

    def drain(self, timeout_s: float) -> bool:
        self.ends.append("drained")
        return True

    def close(self) -> None:
        self.ends.append("closed")


class Outside:
    """Run, process and log of an actor in memory. The process stops when a sink has no more grants."""

    def __init__(self, *grants: Sequence[Grant]) -> None:
        """Prepares one sink for each list of grants."""
        self._grants = deque(grants)
        self.place, self.next_place, self.finished = PLACE, PLACE, False
        self.out_of_grants: Callable[[], None] = self.stop
        self.published = deque([0])
        self.grant_delay_s = 0.0
        self.sinks: list[MemorySink] = []
        self.reports: list[ActorReport] = []
        self.faults: list[EnvironmentFault] = []
        self.events: list[str] = []
        self.signals_taken = 0
        self.seeds: list[tuple[int | str, ...]] = []
        self.lost_to: list[int] = []
        self.stopping, self.supervised = False, False

    @property
    def windows(self) -> list[Window]:
        """All windows, in the order in which they were sent."""
        return [window for sink in self.sinks for window in sink.windows]

    def open_sink(self, place: Assignment) -> MemorySink:
        assert place == self.place
        self.sinks.append(MemorySink(self, self._grants.popleft()))
        return self.sinks[-1]

    def assignment(self, timeout_s: float) -> Assignment | None:
        if self.finished:
            raise RunFinished("total_steps")
        return self.place

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        newest = self.published.popleft() if len(self.published) > 1 else self.published[0]
        return replace(WEIGHTS, version=newest) if newest >= version else None

    def join_again(self, taken_by: int = 0) -> None:
        self.lost_to.append(taken_by)
        self.place = self.next_place

    def report(self, report: ActorReport) -> None:
        self.reports.append(report)

    def report_fault(self, fault: EnvironmentFault) -> None:
        self.faults.append(fault)

    def stop(self) -> None:
        self.stopping = True

    def wait(self, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return self.stopping

    def restore_process(self) -> None:
        self.events.append("process restored")

    def take_signals(self) -> None:
        self.signals_taken += 1

    def seed_generators(self, *key: int | str) -> None:
        self.seeds.append(key)

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    def warning(self, event: str, **fields: object) -> None:
        self.events.append(event)


def grants(*minimum_versions: int) -> list[Grant]:
    return [Grant(batch, version) for batch, version in enumerate(minimum_versions)]


def failing(**kwargs: object) -> Callable[[int, Progress], Environments]:
    """Returns a function that makes two environments of Failing-v0 with these arguments."""
    # With the expected spec no environment is reset while it is made, so that its first reset is the actor's.
    return lambda variant, progress: make_environments(
        "Failing-v0", COUNT, kwargs=kwargs, progress=progress, expected=SPEC
    )


SOUND = failing(at=-1)


def work(
    outside: Outside,
    make: Callable[[int, Progress], Environments] = SOUND,
    exchange: Callable[[str], AbstractContextManager[None]] = lambda activity: nullcontext(),
) -> Progress:
    """Runs an actor until it ends, and returns its progress."""
    progress = Progress()

    def make_variant(variant: int | None, spec: EnvironmentSpec | None) -> Environments:
        assert variant is not None
        return make(variant, progress)

    act(
        ActorParts(
            run=outside,
            open_sink=outside.open_sink,
            load=lambda weights, temperature: runner_of(weights, temperature=temperature),
            environments=ReplaceableEnvironments(make_variant, progress, outside, outside),
            process=outside,
            log=outside,
            schema=segment_schema(SPEC, UNROLL_LENGTH),
            discount=0.9,
            exchange=exchange,
        )
    )
    return progress


def test_each_grant_yields_one_window_with_weights_of_its_minimum_version() -> None:
    outside = Outside(grants(0, 0, 3))
    outside.published = deque([0, 1, 2, 2, 5])
    work(outside)
    assert [window.head.version for window in outside.windows] == [0, 1, 5]
    assert [window.head.first_sequence for window in outside.windows] == [1, 3, 5]


def test_the_exchange_with_other_services_is_measured() -> None:
    outside, activities = Outside(grants(0, 0)), list[str]()

    @contextmanager
    def note(activity: str) -> Iterator[None]:
        windows = len(outside.windows)
        yield
        activities.append(activity)
        # Collection is no part of the exchange.
        assert len(outside.windows) == windows + (activity == "sending")

    work(outside, exchange=note)
    assert activities[:6] == ["granting", "loading", "sending"] * 2


def test_nothing_is_collected_without_a_grant() -> None:
    outside, polls = Outside([]), []

    def note_poll() -> None:
        polls.append(outside.windows)
        outside.stopping = len(polls) == 3

    outside.out_of_grants = note_poll
    progress = work(outside)
    assert (len(polls), outside.windows, progress.steps) == (3, [], 0)


def test_nothing_is_collected_when_the_process_stops_before_new_enough_weights_arrive() -> None:
    outside = Outside(grants(7))

    def stop(version: int, timeout_s: float) -> Weights | None:
        outside.stop()
        return None

    outside.at_least = stop  # type: ignore[method-assign]
    assert work(outside).steps == 0
    assert outside.windows == []


def test_an_actor_that_stops_drains_its_sink_and_then_reports_the_rest() -> None:
    outside = Outside(grants(0, 0, 0))
    work(outside)
    assert outside.sinks[0].ends == ["drained", "closed"]
    assert sum(report.env_steps for report in outside.reports) == 3 * WINDOW_STEPS
    assert sum(report.segments for report in outside.reports) == 3 * COUNT


def test_the_first_report_precedes_the_first_window_and_has_its_time() -> None:
    outside, before = Outside(grants(0)), time.time()
    work(outside)
    first = outside.reports[0]
    assert before <= first.first_step_at_s <= time.time()
    assert (first.env_steps, first.segments) == (0, 0)


def test_the_seconds_of_an_actor_are_divided_among_its_activities() -> None:
    outside, started = Outside(grants(0, 0, 0, 0)), time.perf_counter()
    outside.grant_delay_s = 0.02
    work(outside, failing(at=-1, pause_s=0.005))
    elapsed_s = time.perf_counter() - started
    waiting_s = sum(report.timing.waiting_s for report in outside.reports)
    environment_s = sum(report.timing.environment_s for report in outside.reports)
    policy_s = sum(report.timing.policy_s for report in outside.reports)
    building_s = sum(report.timing.building_s for report in outside.reports)
    # The last wait is without a grant.
    assert waiting_s >= 5 * 0.02
    assert environment_s >= 4 * WINDOW_STEPS * 0.005
    assert policy_s > 0.0 and building_s > 0.0
    assert waiting_s + environment_s + policy_s + building_s <= elapsed_s


def test_a_failed_environment_drops_the_window_and_the_grant_is_used_for_the_next(tmp_path: Path) -> None:
    outside = Outside(grants(0, 0, 0))
    work(outside, failing(kind="raises", at=6, once=str(tmp_path / "once")))
    assert [window.head.first_sequence for window in outside.windows] == [1, 3, 5]
    [fault] = outside.faults
    assert fault.dropped
    assert fault.text.startswith("environment 40: RuntimeError: simulator lost")
    assert outside.events == ["process restored", "joined", "policy loaded", "window dropped", "process restored"]
    assert sum(report.env_steps for report in outside.reports) == 3 * WINDOW_STEPS
    # After the first reset and after each window.
    assert outside.signals_taken == 4


def test_a_failure_in_the_first_reset_delays_the_sink_until_the_environments_work() -> None:
    outside = Outside(grants(0))
    kinds = deque(["reset raises", "reset raises", "none"])

    def make(variant: int, progress: Progress) -> Environments:
        assert not outside.sinks
        return failing(kind=kinds.popleft(), at=0 if kinds else -1)(variant, progress)

    work(outside, make)
    assert len(outside.windows) == 1
    assert [fault.dropped for fault in outside.faults] == [True, True]


def test_the_pause_doubles_with_each_failure_in_a_row_up_to_five_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    outside, clock, failures_at = Outside(grants(0)), [1000.0], []
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def wait(timeout_s: float) -> bool:
        clock[0] += timeout_s
        return outside.stopping

    def note(fault: EnvironmentFault) -> None:
        failures_at.append(clock[0])
        outside.stopping = len(failures_at) == 9

    outside.wait, outside.report_fault = wait, note  # type: ignore[method-assign]
    work(outside, failing(kind="reset raises", at=0))
    pauses = [after - before for before, after in itertools.pairwise(failures_at)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.15)


def test_environments_that_cannot_be_made_again_end_the_actor() -> None:
    outside, made = Outside(grants(0, 0)), []

    def make(variant: int, progress: Progress) -> Environments:
        made.append(variant)
        if len(made) > 1:
            raise ConfigurationError("no licence")
        return failing(kind="raises", at=6)(variant, progress)

    with pytest.raises(EnvironmentFailed, match=r"^no licence$"):
        work(outside, make)
    assert outside.sinks[0].ends == ["closed"]


@pytest.mark.parametrize(("supervised", "error"), [(True, EnvironmentFailed), (False, ConfigurationError)])
def test_environments_that_fail_after_the_launchers_check_are_not_a_configuration_error(
    supervised: bool, error: type[Exception]
) -> None:
    def make(variant: int, progress: Progress) -> Environments:
        raise ConfigurationError("no licence")

    outside = Outside()
    outside.supervised = supervised
    with pytest.raises(error, match=r"^no licence$"):
        work(outside, make)


def test_an_actor_with_a_new_assignment_continues_under_it_with_the_environments_of_its_variant() -> None:
    outside, variants = Outside(grants(0, 0), grants(0)), []

    def make(variant: int, progress: Progress) -> Environments:
        variants.append(variant)
        return SOUND(variant, progress)

    def move() -> None:
        assert outside.sinks[0].ends == []
        outside.place, outside.out_of_grants = replace(PLACE, slot=3, incarnation=2, variant=1), outside.stop

    outside.out_of_grants = move
    work(outside, make)
    assert [(window.head.slot, window.head.incarnation, window.head.first_sequence) for window in outside.windows] == [
        (0, 1, 1),
        (0, 1, 3),
        (3, 2, 1),
    ]
    assert variants == [0, 1]
    assert [sink.ends for sink in outside.sinks] == [["drained", "closed"]] * 2


def test_an_actor_that_lost_its_place_joins_again() -> None:
    outside = Outside(grants(0), grants(0))
    outside.next_place = replace(PLACE, slot=5)

    def lose() -> None:
        outside.out_of_grants = outside.stop
        raise PlaceLost("the slot is taken", taken_by=4)

    outside.out_of_grants = lose
    work(outside)
    assert outside.lost_to == [4]
    assert [window.head.slot for window in outside.windows] == [0, 5]
    assert outside.sinks[0].ends == ["closed"]
    assert "slot lost, joining as a new actor" in outside.events


def test_the_end_of_the_run_ends_the_actor() -> None:
    outside = Outside(grants(0))

    def finish() -> None:
        outside.finished = True

    outside.out_of_grants = finish
    with pytest.raises(RunFinished, match="total_steps"):
        work(outside)
    assert len(outside.windows) == 1
    assert outside.sinks[0].ends == ["closed"]


def test_the_generators_of_the_process_follow_the_place_in_the_run() -> None:
    outside = Outside(grants(0))
    outside.place = replace(PLACE, seed=5, slot=3, incarnation=2)
    work(outside)
    assert outside.seeds == [(5, 3, 2)]
