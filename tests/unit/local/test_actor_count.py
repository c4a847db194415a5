from dataclasses import dataclass, replace

import pytest

from penstock.local.actor_count import IDLE_ACTORS, INTERVAL_S, ActorCount
from penstock.types.statistics import CoordinatorStatistics, MeanTimes, Wait
from penstock.types.status import RunStatus
from penstock.types.waits import WaitReason


@dataclass
class Run:
    """Totals of a simulated run, with waiting times that the test chooses."""

    seconds: float = 0.0
    env_steps: float = 0.0
    starved_s: float = 0.0
    gated_s: float = 0.0
    collecting_s: float = 0.0
    batches: int = 0

    def advance(self, *, actors: int, starved: float, gated: float, pace: float = 1000.0) -> RunStatus:
        """Adds an interval in which learner and actors wait for these shares of the time, and returns the status."""
        seconds = INTERVAL_S + 0.1
        self.seconds += seconds
        self.env_steps += pace * seconds
        self.starved_s += starved * seconds
        self.gated_s += gated * actors * seconds
        self.collecting_s += (1.0 - gated) * actors * seconds
        self.batches += 10
        times = MeanTimes(
            collect_environment_s=0.75 * self.collecting_s / self.batches,
            collect_policy_s=0.25 * self.collecting_s / self.batches,
            collect_wait_s=self.gated_s / self.batches,
        )
        waits = (
            Wait(WaitReason.parse("the replay service"), 1.0, 0.0),
            Wait(WaitReason.parse("fresh segments of shard 0"), self.starved_s, 0.0),
        )
        return RunStatus(
            phase="training",
            elapsed_s=self.seconds,
            env_steps=int(self.env_steps),
            coordinator=CoordinatorStatistics(
                "asynchronous", 1, batches_trained=self.batches, times=times, waits=waits
            ),
        )


@pytest.fixture
def run() -> Run:
    return Run()


def observe_first(run: Run, count: ActorCount, **shares: float) -> ActorCount:
    """Returns the count after its first observation, which never leads to a decision."""
    assert count.observe(run.advance(actors=count.wanted, **{"starved": 0.9, "gated": 0.9, **shares})) == ""
    return count


def observe(run: Run, count: ActorCount, *, starved: float, gated: float = 0.0, pace: float = 1000.0) -> str:
    """Returns the decision of an observation. The observation after an added actor is skipped, because it starts."""
    decision = count.observe(run.advance(actors=count.wanted, starved=starved, gated=gated, pace=pace))
    if "fresh segments" in decision:
        assert count.observe(run.advance(actors=count.wanted, starved=1.0, gated=0.0, pace=1.0)) == ""
    return decision


def test_the_count_starts_with_one_actor_per_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, wanted in ((1, 1), (2, 1), (4, 2), (16, 8)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert ActorCount().wanted == wanted
        assert ActorCount(least=3).wanted == max(3, wanted)


def test_a_starved_learner_gets_actors_while_they_speed_up_the_run(run: Run) -> None:
    count, wanted = observe_first(run, ActorCount(most=8)), []
    first = count.wanted
    for pace in (1000.0, 1500.0, 1900.0, 1950.0):
        decision = observe(run, count, starved=0.5, pace=pace)
        assert "waits 50% of the time for fresh segments" in decision or "no faster" in decision
        wanted.append(count.wanted - first)
    assert wanted == [1, 2, 3, 2]


def test_an_actor_without_benefit_is_removed_and_no_other_is_tried(run: Run) -> None:
    count = observe_first(run, ActorCount(most=8))
    first = count.wanted
    assert observe(run, count, starved=0.5, pace=1000.0)
    assert count.wanted == first + 1
    assert "no faster" in observe(run, count, starved=0.4, pace=1020.0)
    assert count.wanted == first
    for _ in range(3):
        assert observe(run, count, starved=0.5) == ""


def test_actors_that_wait_for_the_learner_are_removed_down_to_the_needed_number(run: Run) -> None:
    count = observe_first(run, ActorCount(least=2, most=8))
    count.wanted = 8
    work = 2.6
    for _ in range(10):
        idle = 1.0 - work / count.wanted
        count.observe(run.advance(actors=count.wanted, starved=0.0, gated=idle))
    # With one fewer, actors would be idle for less than a quarter of one actor's time.
    assert count.wanted - work <= IDLE_ACTORS < count.wanted + 1 - work
    for _ in range(10):
        count.observe(run.advance(actors=count.wanted, starved=0.0, gated=0.99))
    assert count.wanted == 2


def test_no_actor_is_added_if_learner_and_actors_both_wait(run: Run) -> None:
    count = observe_first(run, ActorCount(most=8))
    count.wanted = 3
    assert count.observe(run.advance(actors=3, starved=0.3, gated=0.5)) == ""
    assert count.wanted == 3


def test_the_count_never_exceeds_its_maximum(run: Run) -> None:
    count, pace = observe_first(run, ActorCount(most=3)), 1000.0
    for _ in range(10):
        pace *= 1.2
        observe(run, count, starved=0.9, pace=pace)
    assert count.wanted == 3


def test_only_intervals_of_training_are_observed(run: Run) -> None:
    count = observe_first(run, ActorCount(most=8))
    status = run.advance(actors=1, starved=0.9, gated=0.0)
    for other in (RunStatus(phase="training"), replace(status, phase="evaluating"), replace(status, elapsed_s=6.0)):
        assert count.observe(other) == ""
    assert count.observe(status) != ""
    assert count.observe(status) == ""


def test_observation_restarts_with_a_restarted_learner(run: Run) -> None:
    count = observe_first(run, ActorCount(most=8))
    restarted = Run()
    assert count.observe(restarted.advance(actors=1, starved=0.9, gated=0.0)) == ""
    assert count.observe(restarted.advance(actors=1, starved=0.9, gated=0.0)) != ""
