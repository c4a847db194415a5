"""`make bench-gradient-steps`: CPU time of training on a batch on a CPU, with autograd and without.

One process, one thread, CPU time of the thread. The batch is that of the table "like for like" of `make bench-loop`: 64
segments of 64 steps, two passes, and two tanh trunks, of 64x64 for two tasks, and of other depths and widths for
CartPole. `auto` and `eager` alternate in each round. A case where `auto` takes more than 3% longer is reported, and the
exit code is then 1. The result is build/bench/gradient_steps.json.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from penstock.algo.network import Network
from penstock.config import Execution
from penstock.learning.step.batches import to_tensors
from penstock.learning.step.learner import Learner
from tests.support.results.provenance import of_this_run
from tests.support.training.training import collect_batch, make_learner

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "gradient_steps.json"
SEGMENTS = STEPS = 64
EPOCHS = 2
EXECUTIONS: tuple[Execution, ...] = ("eager", "auto")
TOLERANCE = 1.03
"""CPU time of `auto` relative to `eager` from which a case is reported."""
CPU = torch.device("cpu")
_WARM_UP = 2
_LEAST_S = 0.1
"""CPU seconds of one measurement."""


class Case(NamedTuple):
    """What is trained.

    Attributes:
        env_id: The task.
        layers: Units of the hidden layers.
        rows: Rows of a minibatch.
    """

    env_id: str
    layers: tuple[int, ...]
    rows: int


CASES = [
    *(Case("Pendulum-v1", (64, 64), rows) for rows in (256, 1024)),
    *(
        Case("CartPole-v1", (units,) * depth, rows)
        for units, depth, rows in itertools.product((32, 64, 128, 256, 512, 1024), (1, 2, 3), (64, 256, 1024, 4096))
    ),
]


def learner_of(case: Case, execution: Execution) -> Learner:
    """Returns a new learner of a small network without normalisation."""
    network = Network(hidden_sizes=case.layers, normalise_observations=False, normalise_returns=False)
    minibatches = SEGMENTS * STEPS // case.rows
    return make_learner(case.env_id, network=network, execution=execution, epochs=EPOCHS, minibatches=minibatches)


class Trained:
    """A learner with its batch, and the CPU times that it took for it.

    Attributes:
        execution: What the learner chose.
        batch_s: CPU seconds of each measured batch, with its estimates.
        estimate_s: CPU seconds of the estimates alone.
    """

    def __init__(self, case: Case, execution: Execution) -> None:
        self._learner = learner_of(case, execution)
        collected = collect_batch(case.env_id, segments=SEGMENTS, unroll_length=STEPS, learner=self._learner)
        self._batch = to_tensors(collected, CPU)
        self.execution = self._learner.execution
        self.batch_s: list[float] = []
        self.estimate_s: list[float] = []
        for _ in range(_WARM_UP):
            self._learner.train(self._batch, 0.1)

    def measure(self) -> None:
        """Adds a measurement of each time."""
        for work, found in ((self._learner.train, self.batch_s), (self._learner.estimate, self.estimate_s)):
            started, count = time.thread_time(), 0
            while (spent := time.thread_time() - started) < _LEAST_S or not count:
                work(self._batch, 0.1)
                count += 1
            found.append(spent / count)


def measured(case: Case, rounds: int) -> list[dict[str, object]]:
    """Returns one result per execution: medians over the rounds."""
    learners = [Trained(case, execution) for execution in EXECUTIONS]
    for _ in range(rounds):
        for learner in learners:
            learner.measure()
    results: list[dict[str, object]] = []
    for learner in learners:
        batch_s, estimate_s = statistics.median(learner.batch_s), statistics.median(learner.estimate_s)
        steps = EPOCHS * SEGMENTS * STEPS // case.rows
        results.append(
            {
                "env_id": case.env_id,
                "layers": case.layers,
                "rows_of_a_minibatch": case.rows,
                "execution": learner.execution,
                "batch_cpu_ms": 1e3 * batch_s,
                "estimate_cpu_ms": 1e3 * estimate_s,
                "gradient_step_cpu_ms": 1e3 * (batch_s - estimate_s) / steps,
                "cpu_us_per_environment_step": 1e6 * batch_s / (SEGMENTS * STEPS),
            }
        )
    return results


def main() -> int:
    """Measures, prints and writes all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: list[dict[str, object]] = []
    table = Table(
        "task", "layers", "rows", "execution", "batch, ms", "gradient step, ms", "us per step", "auto / eager"
    )
    slower: list[str] = []
    for number, case in enumerate(CASES):
        print(f"{number + 1} of {len(CASES)}: {case.env_id}, {_shown(case.layers)}, {case.rows} rows", file=sys.stderr)
        eager, auto = measured(case, arguments.rounds)
        ratio = float(str(auto["batch_cpu_ms"])) / float(str(eager["batch_cpu_ms"]))
        slower += [f"{case.env_id} {_shown(case.layers)} {case.rows}: {ratio:.2f}"] * (ratio > TOLERANCE)
        results += [eager, auto]
        for each in (eager, auto):
            numbers = ("batch_cpu_ms", "gradient_step_cpu_ms", "cpu_us_per_environment_step")
            names = (case.env_id, _shown(case.layers), str(case.rows), str(each["execution"]))
            table.add_row(*names, *(f"{each[name]:.2f}" for name in numbers), f"{ratio:.2f}" * (each is auto))
    Console().print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(
        json.dumps({"provenance": of_this_run(), "rounds": arguments.rounds, "cases": results}, indent=2) + "\n"
    )
    print(f"written to {OUTPUT}")
    for shown in slower:
        print(f"auto takes longer than eager: {shown}")
    return 1 if slower else 0


def _shown(layers: tuple[int, ...]) -> str:
    return "x".join(str(units) for units in layers)


if __name__ == "__main__":
    sys.exit(main())
