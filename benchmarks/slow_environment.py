"""`make bench-slow-environment`: one environment that is twenty times slower than the seven beside it.

An actor's collector fills windows from environments in worker processes, whose step sleeps for a millisecond, or for
twenty in one of them. It waits for all of them, or for seven of eight (environment.ready_share). Seven equally fast
environments alone are the reference. All forms take turns. The result is build/bench/slow_environment.json.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from penstock.acting.collector import Collector
from penstock.acting.policies.runners import runner_of
from penstock.acting.ready_collector import ReadyCollector
from penstock.acting.values import faults
from penstock.acting.values.spaces import segment_schema
from penstock.machine.files import write_json
from penstock.types.run import Assignment
from tests.support.environments.made import make_environments
from tests.support.results.provenance import of_this_run
from tests.support.training.policies import fresh_weights

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "slow_environment.json"
STEP_S, SLOWER, STEPS = 1e-3, 20, 32


class Sleeping(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole-v1 whose step sleeps. The one that creates the file `slowest` sleeps twenty times longer."""

    def __init__(self, slowest: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        try:
            Path(slowest).touch(exist_ok=False)
            self._step_s = SLOWER * STEP_S
        except FileExistsError:
            self._step_s = STEP_S

    def step(self, action: Any) -> Any:
        """Sleeps, and takes the step."""
        time.sleep(self._step_s)
        return self.env.step(action)


@dataclass(frozen=True, slots=True)
class Form:
    """A number of environments, of which one may be slow, and the share of them that completes a window."""

    name: str
    count: int
    slow: bool
    ready_share: float


FORMS = (
    Form("seven fast", 7, slow=False, ready_share=1.0),
    Form("seven fast and one slow, all awaited", 8, slow=True, ready_share=1.0),
    Form("seven fast and one slow, seven awaited", 8, slow=True, ready_share=7 / 8),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """Environment steps per second: the median of all rounds."""

    form: str
    steps_per_s: float


def read(form: Form, seconds: float) -> float:
    """Returns the valid steps per second of one collector."""
    with tempfile.TemporaryDirectory() as folder:
        slowest = Path(folder, "slowest")
        if not form.slow:
            slowest.touch()
        made = make_environments(
            f"{__file__}:Sleeping",
            form.count,
            kwargs={"slowest": str(slowest)},
            vectorization="process",
            workers=form.count,
        )
        place = Assignment(slot=0, incarnation=1, environments=tuple(range(form.count)), token=b"", seed=1)
        with closing(made) as environments:
            schema, runner = segment_schema(environments.spec, STEPS), runner_of(fresh_weights(environments.spec))
            kind = Collector if form.ready_share == 1.0 else partial(ReadyCollector, ready_share=form.ready_share)
            collector = kind(
                environments,
                place,
                schema=schema,
                discount=0.99,
                failures=0,
                largest_magnitude=faults.LARGEST,
            )
            collector.collect(runner)
            collector.take_episodes()
            started = time.perf_counter()
            while time.perf_counter() - started < seconds:
                collector.collect(runner)
            return collector.take_episodes()[1] / (time.perf_counter() - started)


def main() -> int:
    """Measures and prints every form, and writes the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    found = defaultdict[str, list[float]](list)
    for _ in range(arguments.rounds):
        for form in FORMS:
            found[form.name].append(read(form, arguments.seconds))
    results = [Reading(name, statistics.median(rates)) for name, rates in found.items()]
    for each in results:
        print(f"{each.form}: {each.steps_per_s:,.0f} steps/s, {each.steps_per_s / results[0].steps_per_s:.2f} of seven")
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    settings = {"rounds": arguments.rounds, "seconds": arguments.seconds, "step_s": STEP_S, "slower": SLOWER}
    write_json(OUTPUT, {"provenance": of_this_run(), **settings, "readings": [asdict(each) for each in results]})
    print(f"written to {OUTPUT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
