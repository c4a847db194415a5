"""The judgement of the number of actors, on a model of a run and of the engine that follows it."""

import dataclasses
import math
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.learning.members.wanted_actors import (
    INTERVAL_S,
    LEAST_BATCHES,
    LOOKS,
    RETRIED_AFTER_S,
    STARVED,
    WantedActors,
    Work,
)

RATIOS = [0.4, 1.0, 2.5, 7.3, 10.0, 30.0, 64.0]
CALM_FROM_S = 400


@dataclass
class ModelledRun:
    """A run in seconds, in which `ratio` actors collect what the learner trains at full speed.

    Attributes:
        ratio: Actors that the learner can use.
        first: Actors at the beginning.
        follows: Whether an engine starts and ends actors as they are wanted.
        starting_s: Seconds from an actor's start to its first step.
        noise: Standard deviation of an actor's speed, and of what its reports show of a second.
        preempted: Share of the actors that are taken away every 30 s and start again.
        limit: Actors above which more of them are no faster, as another part of the run is the limit.
        seed: Seed of noise and preemption.
    """

    ratio: float
    first: int = 1
    follows: bool = True
    starting_s: float = 20.0
    noise: float = 0.1
    preempted: float = 0.0
    limit: float = math.inf
    seed: int = 0
    least: int = 1
    most: int = 256
    numbers: list[int] = field(default_factory=list)
    raises: list[int] = field(default_factory=list)
    work: Work = field(default_factory=Work)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._judge = WantedActors(self.first, least=self.least, most=self.most)
        self._working_from = [0.0] * self.first

    def run(self, seconds: int) -> "ModelledRun":
        for _ in range(seconds):
            self._second()
        return self

    def _second(self) -> None:
        now, wanted = len(self.numbers) + 1.0, self._wanted
        if self.preempted and now % 30 == 0:
            present = range(len(self._working_from))
            for index in self._random.sample(present, int(self.preempted * len(present))):
                self._working_from[index] = now + self.starting_s
        if self.follows and now % 10 == 0:
            while len(self._working_from) < wanted:
                self._working_from.append(now + self.starting_s)
            del self._working_from[wanted:]
        actors = sum(begin <= now for begin in self._working_from)
        # The noise of independent actors averages out.
        noise = self.noise / math.sqrt(max(1, actors))
        able = min(actors, self.limit) * max(0.1, self._random.gauss(1.0, noise))
        trained = min(able, self.ratio)
        busy, seen = trained / able if able else 0.0, max(0.0, self._random.gauss(1.0, noise))
        if self.limit < actors:
            # All of them work, each of them slowly.
            busy = 1.0
        work = self.work
        self.work = Work(
            elapsed_s=work.elapsed_s + 1.0,
            excluded_s=work.excluded_s,
            starved_s=work.starved_s + 1.0 - trained / self.ratio,
            collecting_s=work.collecting_s + actors * busy * seen,
            gated_s=work.gated_s + actors * (1.0 - busy) * seen,
            batches=int(now * 10),
            env_steps=work.env_steps + int(1000 * trained),
        )
        if self._judge.observe(self.work) and self._wanted > wanted:
            self.raises.append(self._wanted)
        self.numbers.append(self._wanted)

    @property
    def _wanted(self) -> int:
        assert self._judge.number is not None
        return self._judge.number

    @property
    def calm(self) -> list[int]:
        return self.numbers[CALM_FROM_S:]


def assert_fits(run: ModelledRun) -> None:
    """Asserts that the number is about the smallest that does not starve the learner, and does not oscillate."""
    enough, margin = math.ceil(run.ratio), 1.0 + 0.05 * run.ratio
    assert all(abs(number - enough) <= margin for number in run.calm), run.calm
    changes = sum(before != after for before, after in zip(run.calm, run.calm[1:], strict=False))
    assert changes <= 4, run.calm


@pytest.mark.parametrize("ratio", RATIOS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"first": 100},
        {"noise": 0.0},
        {"noise": 0.2},
        {"starting_s": 0.0},
        {"starting_s": 90.0, "first": 8},
        {"preempted": 0.5},
        {"preempted": 0.3, "first": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_number_becomes_the_smallest_that_does_not_starve_the_learner_and_stays(
    ratio: float, changes: dict[str, Any], seed: int
) -> None:
    assert_fits(ModelledRun(ratio, seed=seed, **changes).run(900))


@pytest.mark.parametrize("present", [1, 2, 5, 40])
def test_the_number_does_not_depend_on_an_engine_that_does_not_follow_it(present: int) -> None:
    run = ModelledRun(10.0, first=present, follows=False).run(900)
    # Nothing is known about more than four times the actors that there are.
    assert set(run.calm) <= ({10, 11} if present > 2 else {4 * present})


def test_64_actors_are_asked_for_in_a_few_steps() -> None:
    run = ModelledRun(64.0).run(300)
    assert 60 <= run.numbers[-1] <= 66
    steps = [number for number in run.raises if number < 0.9 * 64]
    # Every step takes the start of its actors, 20 s here, and a few looks.
    assert len(steps) <= 4 and run.numbers.index(run.raises[len(steps)]) <= 120


def test_the_number_is_within_its_bounds() -> None:
    assert set(ModelledRun(64.0, most=20).run(600).calm) == {20}
    assert set(ModelledRun(0.1, first=9, least=3).run(600).calm) == {3}
    assert WantedActors(9, least=1, most=4).number == 4


def test_actors_that_make_the_run_no_faster_are_given_back_and_tried_again_later() -> None:
    run = ModelledRun(1000.0, limit=16.0).run(int(RETRIED_AFTER_S) - 100)
    assert max(run.numbers) <= 4 * 17 and set(run.calm) <= {16, 17}
    later = run.run(600)
    assert max(later.calm) > 17 and later.numbers[-1] <= 17


def look(**changes: Any) -> Work:
    """Returns the totals after a look in which 2 actors worked and the learner waited for half of the time."""
    seconds = INTERVAL_S
    work = Work(
        elapsed_s=seconds,
        starved_s=0.5 * seconds,
        collecting_s=2.0 * seconds,
        batches=LEAST_BATCHES,
        env_steps=1000,
    )
    return dataclasses.replace(work, **changes)


def added(before: Work, work: Work) -> Work:
    return Work(*(getattr(before, name) + getattr(work, name) for name in Work.__slots__))


def numbers_of(judge: WantedActors, *looks: Work) -> list[int | None]:
    """Returns the number after each look."""
    total = Work()
    judge.observe(total)
    numbers = list[int | None]()
    for each in looks:
        total = added(total, each)
        judge.observe(total)
        numbers.append(judge.number)
    return numbers


def test_the_number_is_the_busy_actors_per_busy_share_of_the_learner() -> None:
    assert numbers_of(WantedActors(2, least=1, most=9), look()) == [4]
    assert numbers_of(WantedActors(2, least=1, most=9), look(starved_s=0.0, collecting_s=1.4 * INTERVAL_S)) == [2]


def test_a_look_needs_time_and_batches() -> None:
    assert numbers_of(WantedActors(2, least=1, most=9), look(elapsed_s=INTERVAL_S - 0.1)) == [2]
    assert numbers_of(WantedActors(2, least=1, most=9), look(batches=LEAST_BATCHES - 1)) == [2]
    assert numbers_of(WantedActors(2, least=1, most=9), look(batches=LEAST_BATCHES - 1), look()) == [2, 4]


def test_a_wait_for_anything_but_actors_is_no_time_of_the_run() -> None:
    idle = look(elapsed_s=100.0, excluded_s=100.0, starved_s=0.0, collecting_s=0.0, gated_s=200.0, batches=0)
    fed = look(starved_s=0.0)
    assert numbers_of(WantedActors(2, least=1, most=9), *[idle, fed] * (2 * LOOKS)) == [2] * (4 * LOOKS)


def test_a_learner_and_actors_that_work_in_turn_get_no_further_actors() -> None:
    in_turn = look(collecting_s=INTERVAL_S, gated_s=INTERVAL_S)
    assert numbers_of(WantedActors(2, least=1, most=9), *[in_turn] * 20) == [2] * 20


def test_a_learner_that_waits_a_little_keeps_its_actors() -> None:
    little = look(starved_s=(STARVED - 0.01) * INTERVAL_S)
    assert numbers_of(WantedActors(2, least=1, most=9), *[little] * 20) == [2] * 20


def test_a_number_that_is_not_planned_begins_with_the_present_actors() -> None:
    judge = WantedActors(None, least=1, most=9)
    assert judge.number is None
    assert numbers_of(judge, look(starved_s=0.0, collecting_s=3.0 * INTERVAL_S)) == [3]


def test_present_actors_that_are_needed_are_asked_for() -> None:
    judge, used = WantedActors(2, least=1, most=9), look(starved_s=0.0, collecting_s=5.0 * INTERVAL_S)
    assert numbers_of(judge, *[used] * (LOOKS + 1)) == [2] * (LOOKS - 1) + [5, 5]
