import pytest

from penstock.errors import AllActorsFailed
from penstock.learning.actor_states import MOST_FAILURES, STUCK_AFTER_S, ActorStates
from penstock.types import ActorProgress, ActorState, EnvironmentFault

FAULT = EnvironmentFault("environment 3: RuntimeError: lost in step 12 of its episode (My-v0)", dropped=True)


class World:
    """Actors that a clock and a user look at."""

    def __init__(self, *names: str) -> None:
        self.now, self.told = 0.0, list[str]()
        self.states = ActorStates(self.told.append, lambda: self.now)
        for slot, name in enumerate(names):
            self.states.joined(name, slot)

    def fail(self, name: str, times: int = 1) -> None:
        for _ in range(times):
            self.states.failed(name, FAULT)

    def step(self, name: str, steps: int, seconds: float = 1.0, **progress: object) -> None:
        """Some time passes, and an actor tells of its progress."""
        self.now += seconds
        self.states.progressed(name, ActorProgress(steps, **{"doing": "step", **progress}))  # type: ignore[arg-type]

    def state(self, name: str) -> ActorState:
        return next(state for state in self.states.states() if state.name == name)


# The end of a run


def test_a_run_ends_when_the_environments_of_every_actor_failed_three_times_in_a_row() -> None:
    world = World("actor-0", "actor-1")
    world.fail("actor-0", MOST_FAILURES)
    world.fail("actor-1", MOST_FAILURES - 1)
    world.states.check()
    world.fail("actor-1")
    with pytest.raises(AllActorsFailed) as caught:
        world.states.check()
    for part in ("environment 3: RuntimeError: lost in step 12 of its episode (My-v0)", "actor-", "3 times in a row"):
        assert part in str(caught.value)


def test_a_segment_in_between_prevents_the_end() -> None:
    world = World("actor-0")
    for _ in range(10):
        world.fail("actor-0", MOST_FAILURES - 1)
        world.states.delivered("actor-0", 8)
        world.states.check()
    assert world.state("actor-0") == ActorState("actor-0", segments=80, dropped_windows=20)


def test_a_report_without_segments_does_not() -> None:
    world = World("actor-0")
    for _ in range(MOST_FAILURES):
        world.fail("actor-0")
        world.states.delivered("actor-0", 0)
    with pytest.raises(AllActorsFailed):
        world.states.check()


def test_an_actor_that_joins_late_prevents_the_end() -> None:
    world = World("actor-0")
    world.fail("actor-0", MOST_FAILURES)
    world.states.joined("actor-1", 1)
    world.states.check()


def test_failures_are_counted_over_the_processes_of_an_actor() -> None:
    world = World("actor-0")
    for slot in range(MOST_FAILURES):
        world.states.check()
        world.fail("actor-0")
        world.states.left("actor-0")
        world.now += 5.0
        world.states.look()
        # A process without the token is somebody new, in another slot.
        world.states.joined("actor-0", slot + 1)
    assert world.state("actor-0") == ActorState("actor-0", slot=3, failures=3, dropped_windows=3)
    with pytest.raises(AllActorsFailed):
        world.states.check()


def test_an_actor_that_left_for_good_decides_nothing() -> None:
    world = World("actor-0", "actor-1")
    world.fail("actor-0", MOST_FAILURES)
    world.states.left("actor-1")
    world.now += 59.0
    world.states.look()
    world.states.check()
    world.now += 2.0
    world.states.look()
    assert [state.name for state in world.states.states()] == ["actor-0"]
    with pytest.raises(AllActorsFailed):
        world.states.check()


def test_without_actors_a_run_does_not_end() -> None:
    World().states.check()


def test_the_end_of_a_stream_whose_actor_is_back_already_leaves_it_connected() -> None:
    world = World("actor-0")
    world.states.joined("actor-0", 0)
    world.states.left("actor-0")
    assert world.state("actor-0").connected
    world.states.left("actor-0")
    assert not world.state("actor-0").connected


# What the user is told


def test_the_first_failures_are_told_at_once_and_later_ones_once_a_minute() -> None:
    world = World("actor-0")
    for _ in range(100):
        world.now += 1.0
        world.fail("actor-0")
        world.states.delivered("actor-0", 8)
    assert world.told[0] == "actor-0, environment 3: RuntimeError: lost in step 12 of its episode (My-v0)"
    assert len(world.told) == 4
    assert world.state("actor-0").dropped_windows == 100


def test_a_warning_is_told_once_and_is_no_failure() -> None:
    world = World("actor-0", "actor-1")
    for name in ("actor-0", "actor-1"):
        world.states.failed(name, EnvironmentFault("environment 3: an observation has 1e+06", dropped=False))
    assert world.told == ["actor-0, environment 3: an observation has 1e+06"]
    assert [state.failures for state in world.states.states()] == [0, 0]


def test_an_actor_that_takes_no_step_is_told_of_by_name_and_ever_more_rarely() -> None:
    world = World("actor-0", "actor-1")
    world.step("actor-0", 7, environment=3)
    for second in range(600):
        world.step("actor-0", 7, environment=3)
        world.step("actor-1", second, seconds=0.0)
        world.states.look()
    assert world.told[0] == f"actor-0 (slot 0): step of environment 3 has not returned for {STUCK_AFTER_S + 1:.0f} s"
    assert 3 <= len(world.told) <= 7
    assert world.state("actor-0").stuck_s == 600.0
    assert world.state("actor-0").doing == "step of environment 3"
    assert world.state("actor-1").stuck_s == 0.0


def test_an_actor_whose_process_is_stopped_is_stuck_too() -> None:
    world = World("actor-0")
    world.step("actor-0", 7, doing="")
    world.now += STUCK_AFTER_S + 1.0
    world.states.look()
    assert world.told == ["actor-0 (slot 0): no sign of life for 11 s"]


def test_neither_a_slow_actor_nor_one_that_waits_nor_one_that_left_is_stuck() -> None:
    world = World("slow", "waiting", "gone")
    world.states.left("gone")
    for second in range(100):
        world.step("slow", second // 8)
        world.step("waiting", 5, seconds=0.0, doing="")
        world.states.look()
    assert world.told == []
    assert world.state("waiting").stuck_s == 0.0


def test_how_far_a_slow_window_is_can_be_read() -> None:
    world = World("actor-0", "actor-1")
    for step in range(13):
        world.step("actor-0", step, seconds=2.0, window_step=step, window_steps=32)
        world.step("actor-1", step, seconds=0.0, doing="")
    assert world.states.slowest() == "actor-0 is at step 12 of 32 of its window (2.0 s a step)"
    world.states.delivered("actor-0", 4)
    assert world.states.slowest() == ""
