from typing import Any

import pytest

from penstock.errors import AllActorsFailed
from penstock.learning.members.actor_states import MOST_FAILURES, STUCK_AFTER_S, ActorStates
from penstock.types.location import Location
from penstock.types.run import ActorProgress, EnvironmentFault
from penstock.types.statistics import Timing
from penstock.types.status import ActorState, NodeState

FAULT = EnvironmentFault("environment 3: RuntimeError: lost in step 12 of its episode (My-v0)", dropped=True)


class World:
    """Actor states with a clock that the test sets, and with recorded notices."""

    def __init__(self, *names: str) -> None:
        self.now, self.notices = 0.0, list[str]()
        self.states = ActorStates(self.notices.append, lambda: self.now)
        for slot, name in enumerate(names):
            self.states.joined(name, slot)

    def fail(self, name: str, times: int = 1) -> None:
        for _ in range(times):
            self.states.failed(name, FAULT)

    def step(self, name: str, steps: int, seconds: float = 1.0, **progress: Any) -> None:
        """Advances the clock and reports the progress of an actor."""
        self.now += seconds
        self.states.progressed(name, ActorProgress(steps, **{"doing": "step", **progress}))

    def state(self, name: str) -> ActorState:
        return next(state for state in self.states.states() if state.name == name)


# The end of a run


def test_a_run_ends_when_all_actors_had_three_failures_in_a_row() -> None:
    world = World("actor-0", "actor-1")
    world.fail("actor-0", MOST_FAILURES)
    world.fail("actor-1", MOST_FAILURES - 1)
    world.states.check()
    world.fail("actor-1")
    with pytest.raises(AllActorsFailed) as caught:
        world.states.check()
    for part in ("environment 3: RuntimeError: lost in step 12 of its episode (My-v0)", "actor-", "3 times in a row"):
        assert part in str(caught.value)


def test_a_segment_between_failures_prevents_the_end() -> None:
    world = World("actor-0")
    for _ in range(10):
        world.fail("actor-0", MOST_FAILURES - 1)
        world.states.delivered("actor-0", 8)
        world.states.check()
    assert world.state("actor-0") == ActorState("actor-0", segments=80, dropped_windows=20)


def test_a_report_without_segments_does_not_prevent_the_end() -> None:
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
        # A process without the token is a new actor, in another slot.
        world.states.joined("actor-0", slot + 1)
    assert world.state("actor-0") == ActorState("actor-0", slot=3, failures=3, dropped_windows=3)
    with pytest.raises(AllActorsFailed):
        world.states.check()


def test_an_actor_that_left_permanently_does_not_prevent_the_end() -> None:
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


def test_the_end_of_an_old_stream_leaves_a_rejoined_actor_connected() -> None:
    world = World("actor-0")
    world.states.joined("actor-0", 0)
    world.states.left("actor-0")
    assert world.state("actor-0").connected
    world.states.left("actor-0")
    assert not world.state("actor-0").connected


def test_the_end_of_a_stream_of_an_unknown_actor_changes_nothing() -> None:
    world = World("actor-0")
    before = world.states.states()
    world.states.left("stranger")
    assert world.states.states() == before


# Notices to the user


def test_the_first_failures_are_reported_at_once_and_later_ones_once_per_minute() -> None:
    world = World("actor-0")
    for _ in range(100):
        world.now += 1.0
        world.fail("actor-0")
        world.states.delivered("actor-0", 8)
    assert world.notices[0] == "actor-0, environment 3: RuntimeError: lost in step 12 of its episode (My-v0)"
    assert len(world.notices) == 4
    assert world.state("actor-0").dropped_windows == 100


def test_a_warning_is_reported_once_and_is_not_a_failure() -> None:
    world = World("actor-0", "actor-1")
    for name in ("actor-0", "actor-1"):
        world.states.failed(name, EnvironmentFault("environment 3: an observation has 1e+06", dropped=False))
    assert world.notices == ["actor-0, environment 3: an observation has 1e+06"]
    assert [state.failures for state in world.states.states()] == [0, 0]
    # Of another kind.
    for name in ("actor-0", "actor-1"):
        world.states.failed(name, EnvironmentFault("info lacked 'success' in an episode", dropped=False))
    assert world.notices[1:] == ["actor-0, info lacked 'success' in an episode"]


def test_an_actor_without_progress_is_reported_by_name_at_growing_intervals() -> None:
    world = World("actor-0", "actor-1")
    world.step("actor-0", 7, environment=3)
    for second in range(600):
        world.step("actor-0", 7, environment=3)
        world.step("actor-1", second, seconds=0.0)
        world.states.look()
    assert world.notices[0] == f"actor-0 (slot 0): step of environment 3 has not returned for {STUCK_AFTER_S + 1:.0f} s"
    assert 3 <= len(world.notices) <= 7
    assert world.state("actor-0").stuck_s == 600.0
    assert world.state("actor-0").doing == "step of environment 3"
    assert world.state("actor-1").stuck_s == 0.0


def test_an_actor_whose_process_is_stopped_is_stuck() -> None:
    world = World("actor-0")
    world.step("actor-0", 7, doing="")
    world.now += STUCK_AFTER_S + 1.0
    world.states.look()
    assert world.notices == ["actor-0 (slot 0): no message for 11 s"]


def test_slow_waiting_and_disconnected_actors_are_not_stuck() -> None:
    world = World("slow", "waiting", "gone")
    world.states.left("gone")
    for second in range(100):
        world.step("slow", second // 8)
        world.step("waiting", 5, seconds=0.0, doing="")
        world.states.look()
    assert world.notices == []
    assert world.state("waiting").stuck_s == 0.0


def test_the_status_shows_the_progress_of_a_slow_window() -> None:
    world = World("actor-0", "actor-1")
    for step in range(13):
        world.step("actor-0", step, seconds=2.0, window_step=step, window_steps=32)
        world.step("actor-1", step, seconds=0.0, doing="")
    assert world.states.slowest() == "actor-0 is at step 12 of 32 of its window (2.0 s per step)"
    world.states.delivered("actor-0", 4)
    assert world.states.slowest() == ""


# Nodes


def test_the_speed_of_an_actor_is_that_of_its_last_ten_seconds() -> None:
    world = World("actor-0")
    assert world.state("actor-0").steps_per_s == 0.0
    for second in range(100):
        world.step("actor-0", 50 * second)
    assert world.state("actor-0").steps_per_s == 50.0
    for _ in range(5):
        world.step("actor-0", 50 * 99)
    assert world.state("actor-0").steps_per_s == 25.0
    for _ in range(5):
        world.step("actor-0", 50 * 99)
    assert world.state("actor-0").steps_per_s == 0.0


def test_the_speed_of_a_process_that_replaces_another_begins_anew() -> None:
    world = World("actor-0")
    for second in range(20):
        world.step("actor-0", 1000 * second)
    world.states.left("actor-0")
    assert world.state("actor-0").steps_per_s == 0.0
    world.states.joined("actor-0", 0)
    world.step("actor-0", 0)
    world.step("actor-0", 30)
    assert world.state("actor-0").steps_per_s == 30.0


def test_nodes_have_the_number_the_speeds_and_the_waits_of_their_connected_actors() -> None:
    world = World()
    for slot, node in enumerate(("node2", "node1", "node2", "node2")):
        world.states.joined(f"actor-{slot}", slot, Location(node, "job-7"))
    world.states.left("actor-3")
    for second in range(11):
        world.now += 1.0
        for slot, speed in enumerate((10, 40, 30)):
            world.states.progressed(f"actor-{slot}", ActorProgress(speed * second, doing="step"))
            waiting_s = 0.25 if slot == 1 else 0.5
            world.states.delivered(f"actor-{slot}", 1, Timing(environment_s=1.0 - waiting_s, waiting_s=waiting_s))
    assert world.states.nodes() == (
        NodeState("node1", 1, 0, 40.0, 40.0, 40.0, 0.25),
        NodeState("node2", 2, 0, 40.0, 10.0, 30.0, 0.5),
    )
    assert (world.state("actor-1").node, world.state("actor-1").job) == ("node1", "job-7")
    world.now += STUCK_AFTER_S + 1.0
    assert [node.stuck for node in world.states.nodes()] == [1, 2]


def test_the_share_of_waiting_of_the_first_second_counts() -> None:
    world = World("actor-0")
    for _ in range(2):
        world.now += 0.25
        world.states.progressed("actor-0", ActorProgress(1, doing="step"))
        world.states.delivered("actor-0", 1, Timing(environment_s=0.1, waiting_s=0.3))
    (node,) = world.states.nodes()
    assert node.waiting_share == pytest.approx(0.75)


def test_an_actor_that_returns_from_another_node_counts_there() -> None:
    world = World()
    world.states.joined("actor-0", 0, Location("node1"))
    world.states.left("actor-0")
    world.states.joined("actor-0", 0, Location("node2"))
    assert world.states.nodes() == (NodeState("node2", actors=1),)
