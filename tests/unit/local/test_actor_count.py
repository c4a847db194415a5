import pytest

from penstock.config import build
from penstock.local.actor_count import STEP_S, ActorCount, with_workers
from penstock.machine.cores import usable_cores
from penstock.types.status import RunStatus


def status(wanted: int | None, *, elapsed_s: float, actors: int = 100) -> RunStatus:
    return RunStatus(phase="training", wanted_actors=wanted, elapsed_s=elapsed_s, actors=actors)


def test_the_count_starts_with_one_actor_per_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, first in ((1, 1), (2, 1), (4, 2), (16, 8)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert ActorCount().number == first
        assert ActorCount(least=3).number == max(3, first)


def test_the_count_approaches_what_the_learner_asks_for_one_by_one_up_to_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(4)))
    count, numbers = ActorCount(), []
    for look in range(1, 40):
        decision = count.follow(status(64, elapsed_s=5.0 * look))
        if decision:
            assert decision == f"now {count.number} actors: the learner asks for 4"
            numbers.append((5.0 * look, count.number))
    assert numbers == [(STEP_S, 3), (2 * STEP_S, 4)]


def test_the_count_falls_one_by_one_to_the_least() -> None:
    count, numbers = ActorCount(least=2, most=8), []
    count.number = 4
    for look in range(1, 40):
        count.follow(status(1, elapsed_s=5.0 * look))
        numbers.append(count.number)
    assert numbers[:6] == [4, 4, 3, 3, 3, 2] and numbers[-1] == 2


def test_another_actor_is_added_only_when_the_last_one_has_joined() -> None:
    count = ActorCount(most=8)
    count.number = 2
    assert count.follow(status(8, elapsed_s=100.0, actors=1)) == ""
    assert count.follow(status(8, elapsed_s=200.0, actors=2)) == "now 3 actors: the learner asks for 8"


def test_nothing_changes_before_the_learner_has_judged_and_while_it_does_not_train() -> None:
    count = ActorCount(most=8)
    first = count.number
    assert count.follow(RunStatus()) == ""
    assert count.follow(status(None, elapsed_s=100.0)) == ""
    assert count.follow(RunStatus(phase="evaluating", wanted_actors=8, elapsed_s=100.0, actors=9)) == ""
    assert count.number == first


def test_the_clock_of_a_restarted_learner_does_not_stop_the_count() -> None:
    count = ActorCount(most=8)
    count.number = 2
    assert count.follow(status(8, elapsed_s=1_000.0))
    assert count.follow(status(8, elapsed_s=1.0)) == ""
    decisions = [count.follow(status(8, elapsed_s=float(second))) for second in range(2, 40)]
    assert sum(map(bool, decisions)) == 2


def test_a_run_with_a_fixed_number_of_actors_has_no_count_and_auto_is_bounded_by_the_settings() -> None:
    assert ActorCount.of(build({"train": {"actors": 2}})) is None
    auto = {"train": {"actors": "auto"}, "learner": {"least_wanted_actors": 3, "most_wanted_actors": 3}}
    count = ActorCount.of(build(auto))
    assert count is not None and count.number == 3
    assert count.follow(status(9, elapsed_s=1_000.0)) == ""


def test_worker_processes_share_the_cores_with_the_other_actors() -> None:
    config = build({"environment": {"vectorization": "process"}, "train": {"actors": 1}})
    assert with_workers(config).environment.workers == usable_cores()
    many = config.changed({"train": {"actors": 10 * usable_cores()}})
    assert with_workers(many).environment.workers == 1
    chosen = config.changed({"environment": {"workers": 7}})
    assert with_workers(chosen) == chosen and with_workers(build({})) == build({})
