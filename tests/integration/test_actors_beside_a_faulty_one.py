"""The pace of three actors, and the end of the run, while the environments of a fourth hang, are slow or die."""

import time
from dataclasses import dataclass

import pytest

from penstock.types.status import ActorState
from tests.support.machine.timing import Bound
from tests.support.services.processes import WITH_HELPERS, Command, Ended, Watch, end_of, watching

FAULTS = ("slow", "dead", "hung")
FAULTY, OTHERS = "actor-0", ("actor-1", "actor-2", "actor-3")
KEPT = 0.7
SPAN_S = 3.0
GRANT_TIMEOUT_S = 2.0
RECOVERY_S = GRANT_TIMEOUT_S + 5.0
"""Seconds until the others must have their pace again: after this timeout they receive the faulty actor's grants."""

OPTIONS = (
    "--env-id=Tail-v0 --env-import=tests.support.environments.paced --actors=4 --envs-per-actor=2"
    " --actor.unroll-length=8"
    " --sampling.batch-segments=32 --sampling.fresh-fraction=0.5 --ppo.epochs=1 --total-steps=1000000000"
    f" --evaluation.interval-steps=1000000000 --replay.grant-timeout-s={GRANT_TIMEOUT_S:g}"
)

pytestmark = pytest.mark.nightly


@dataclass(frozen=True, slots=True)
class Span:
    """The work of actors during a span of time.

    Attributes:
        seconds: Length of the span.
        others: Environment steps of the other actors.
        faulty: Segments of the faulty actor.
    """

    seconds: float
    others: int
    faulty: int

    @property
    def pace(self) -> float:
        """Environment steps per second of the others."""
        return self.others / self.seconds


@dataclass(frozen=True, slots=True)
class Seen:
    """Observations of the run: without a fault, during each fault, and at its end during the last."""

    before: Span
    during: dict[str, Span]
    end: Ended
    end_s: float
    end_bound: Bound


def states(watch: Watch) -> dict[str, ActorState]:
    return {state.name: state for state in watch.status().actor_states}


def span(watch: Watch) -> Span:
    began, first = time.monotonic(), states(watch)
    time.sleep(SPAN_S)
    last, seconds = states(watch), time.monotonic() - began
    steps = sum(last[name].steps - first[name].steps for name in OTHERS)
    return Span(seconds, steps, last[FAULTY].segments - first[FAULTY].segments)


def all_work(watch: Watch) -> None:
    """Waits until every actor has sent new segments."""
    before = {name: state.segments for name, state in states(watch).items()}
    watch.until(
        lambda now: len([a for a in now.actor_states if a.segments > before.get(a.name, 0)]) == 1 + len(OTHERS),
        "segments of all actors",
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folder = tmp_path_factory.mktemp("tail")
    run, fault_file, during = folder / "run", folder / "fault", dict[str, Span]()

    def set_fault(kind: str) -> None:
        # Replaced atomically, because it is read at every step.
        (folder / "next").write_text(kind)
        (folder / "next").rename(fault_file)

    options = [*OPTIONS.split(), f"--run-dir={run}", f"--environment.kwargs=fault_file={fault_file}"]
    with Command("train", *options, environment=WITH_HELPERS) as command:
        with watching(command, run) as watch:
            watch.until(lambda now: now.version > 2, "training")
            all_work(watch)
            before = span(watch)
            for kind in FAULTS:
                set_fault(kind)
                time.sleep(RECOVERY_S)
                during[kind] = span(watch)
                if kind != FAULTS[-1]:
                    set_fault("")
                    all_work(watch)
        command.interrupt()
        stopped_at = time.monotonic()
        end = end_of(command)
        return Seen(before, during, end, time.monotonic() - stopped_at, command.end_bound)


@pytest.mark.parametrize("kind", FAULTS)
def test_the_other_actors_soon_regain_their_pace_while_one_is_faulty(seen: Seen, kind: str) -> None:
    assert seen.during[kind].pace >= KEPT * seen.before.pace, seen.before


@pytest.mark.parametrize("kind", FAULTS)
def test_the_fault_lasted_during_the_measurement(seen: Seen, kind: str) -> None:
    # Not none: windows that it collected before the fault arrive when their grants do.
    assert 2 * seen.during[kind].faulty <= seen.before.faulty > 0, seen.before


def test_the_actor_that_died_was_restarted_every_time(seen: Seen) -> None:
    assert seen.end.stdout.count(f"{FAULTY} ended with exit code 1") > 1


def test_the_end_of_the_run_does_not_wait_for_an_environment_that_hangs(seen: Seen) -> None:
    assert seen.end.code == 130, seen.end.stdout + seen.end.stderr
    assert seen.end_s <= seen.end_bound.seconds, seen.end_bound
    assert seen.end.left_behind == []
