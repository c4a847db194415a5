"""`make bench-distant-actors`: the pace of actors at a distance of 100 ms and 50 Mbit/s, compared with near ones.

The replay service and the learner run on another host, behind a link whose delay and rate are set
(`tests.support.services.link`). Environments sleep in each step, so that they and the link decide the pace, and not the
processors, which both hosts share. Near and distant actors take turns. The windows are of two lengths, as are those of
slow and of fast environments. The result is build/bench/distant_actors.json. It needs root, iproute2 and /dev/net/tun.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.many_actors import rates_between
from benchmarks.medians import median
from tests.support.results.provenance import of_this_run
from tests.support.services.link import Host, Link, unavailable
from tests.support.services.processes import WITH_HELPERS, Command, Watch, watching

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "distant_actors.json"
ROUND_TRIP_S, MBIT_PER_S, NEAR_MBIT_PER_S = 0.1, 50.0, 1_000.0
ACTORS, ENVIRONMENTS = 4, 4
PAUSE_S = 0.001
"""Sleep of an environment in each step. The environments of an actor take their steps one after the other."""

LENGTHS, DEGREES = (32, 8), (0, 1, 4)

_SETTLE_S = 5.0
"""Seconds until the clients have measured the round trip, and the pace is steady."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Measurements of a run.

    Attributes:
        steps_per_s: Environment steps of all actors per second.
        batches_per_s: Trained batches per second, each of which is a version.
        up_mbit_per_s, down_mbit_per_s: Load of the link, from the actors and to them.
        lost_packets: Packets that the link could not queue.
    """

    steps_per_s: float
    batches_per_s: float
    up_mbit_per_s: float
    down_mbit_per_s: float
    lost_packets: int


@dataclass(frozen=True, slots=True)
class Case:
    """Runs with windows of one length and one off-policy degree: medians over the rounds."""

    unroll_length: int
    degree: int
    near: Pace
    distant: Pace


def measure(unroll_length: int, degree: int, seconds: float, *, distant: bool) -> Pace:
    """Runs all actors at this distance, and measures them for some seconds once all have delivered."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-distant-")))
        host = stack.enter_context(Host())
        link = host.link()
        delay_s, mbit_per_s = (ROUND_TRIP_S / 2, MBIT_PER_S) if distant else (0.0, NEAR_MBIT_PER_S)
        link.set(delay_s=delay_s, bytes_per_s=mbit_per_s * 1e6 / 8)
        options = _options(link, folder, unroll_length, degree)

        def start(service: str, on: Host | None = None) -> Command:
            return stack.enter_context(Command(service, *options, environment=WITH_HELPERS, directory=folder, host=on))

        start("replay", host)
        learner = start("learner", host)
        for _ in range(ACTORS):
            start("actor")
        watch = stack.enter_context(watching(learner, folder / "run"))
        watch.until(
            lambda status: sum(each.segments > 0 for each in status.actor_states) == ACTORS, "all actors deliver"
        )
        time.sleep(_SETTLE_S)
        return _measured(link, watch, seconds)


def _options(link: Link, folder: Path, unroll_length: int, degree: int) -> Sequence[str]:
    return (
        "--env-id=Paced-v0",
        "--env-import=tests.support.environments.paced",
        f"--environment.kwargs=pause_s={PAUSE_S}",
        f"--run-dir={folder / 'run'}",
        "--total-steps=1000000000000",
        "--evaluation.interval-steps=1000000000000",
        f"--train.actors={ACTORS}",
        f"--envs-per-actor={ENVIRONMENTS}",
        f"--actor.unroll-length={unroll_length}",
        # Each actor delivers a window for each batch, and half of the batch is replayed.
        f"--sampling.batch-segments={2 * ACTORS * ENVIRONMENTS}",
        "--sampling.fresh-fraction=0.5",
        f"--sampling.off-policy-degree={degree}",
        "--ppo.epochs=1",
        "--security.insecure=true",
        "--learner.metrics-port=0",
        "--replay.metrics-port=0",
        f"--replay.listen={link.there}:7431",
        f"--learner.listen={link.there}:7432",
        f"--learner.replay-addresses={link.there}:7431",
        f"--actor.learner-address={link.there}:7432",
    )


def _measured(link: Link, watch: Watch, seconds: float) -> Pace:
    def counters() -> tuple[int, ...]:
        return (
            link.to_there.carried_bytes,
            link.to_here.carried_bytes,
            link.to_there.lost + link.to_here.lost,
        )

    before, counted, began = watch.status(), counters(), time.monotonic()
    time.sleep(seconds)
    after, taken_s = watch.status(), time.monotonic() - began
    up, down, lost = (now - then for now, then in zip(counters(), counted, strict=True))
    return Pace(
        rates_between(before.actor_states, after.actor_states, taken_s).steps_per_s,
        (after.version - before.version) / taken_s,
        8e-6 * up / taken_s,
        8e-6 * down / taken_s,
        lost,
    )


def main() -> None:
    """Measures and prints all cases, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if reason := unavailable():
        raise SystemExit(reason)
    console, cases, load = Console(highlight=False), list[Case](), os.getloadavg()[0]
    for unroll_length in LENGTHS:
        for degree in DEGREES:
            near, distant = list[Pace](), list[Pace]()
            for _ in range(arguments.rounds):
                near.append(measure(unroll_length, degree, arguments.seconds, distant=False))
                distant.append(measure(unroll_length, degree, arguments.seconds, distant=True))
            case = Case(unroll_length, degree, median(near), median(distant))
            cases.append(case)
            console.print(f"windows of {unroll_length} steps, degree {degree}:")
            for name, pace in (("near", case.near), ("distant", case.distant)):
                console.print(
                    f"  {name}: {pace.steps_per_s:,.0f} steps/s, {pace.batches_per_s:.1f} batches/s,"
                    f" {pace.up_mbit_per_s:.1f} Mbit/s from the actors and {pace.down_mbit_per_s:.1f} to them",
                    soft_wrap=True,
                )
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "provenance": of_this_run(),
        "load": load,
        "rounds": arguments.rounds,
        "seconds": arguments.seconds,
        "round_trip_s": ROUND_TRIP_S,
        "mbit_per_s": MBIT_PER_S,
        "actors": ACTORS,
        "environments": ENVIRONMENTS,
        "cases": [asdict(case) for case in cases],
    }
    OUTPUT.write_text(json.dumps(document, indent=2) + "\n")
    console.print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
