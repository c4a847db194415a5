"""`make bench-gradient-steps`: CPU time of training on a batch on a CPU, with autograd and without.

One process, one thread, CPU time of the thread. The batch is that of the table "like for like" of `make bench-loop`: 64
segments of 64 steps, two passes, and two tanh trunks of 64x64. The executions alternate in each round. The result is
build/bench/gradient_steps.json.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

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
MINIBATCHES = (16, 4)
ENVIRONMENTS = ("CartPole-v1", "Pendulum-v1")
EXECUTIONS: tuple[Execution, ...] = ("eager", "auto")
CPU = torch.device("cpu")
_BATCHES = 8
_WARM_UP = 3


def learner_of(env_id: str, minibatches: int, execution: Execution) -> Learner:
    """Returns a new learner of a small network without normalisation."""
    network = Network(normalise_observations=False, normalise_returns=False)
    return make_learner(env_id, network=network, execution=execution, epochs=EPOCHS, minibatches=minibatches)


def cpu_s(work: Callable[[], object], repetitions: int) -> float:
    """Returns the CPU seconds of this thread for one repetition."""
    started = time.thread_time()
    for _ in range(repetitions):
        work()
    return (time.thread_time() - started) / repetitions


def measure(env_id: str, minibatches: int, rounds: int) -> list[dict[str, object]]:
    """Returns one case per execution: medians over the rounds."""
    learners = {execution: learner_of(env_id, minibatches, execution) for execution in EXECUTIONS}
    batches = {
        execution: to_tensors(collect_batch(env_id, segments=SEGMENTS, unroll_length=STEPS, learner=learner), CPU)
        for execution, learner in learners.items()
    }
    training: dict[Execution, list[float]] = {execution: [] for execution in EXECUTIONS}
    estimating: dict[Execution, list[float]] = {execution: [] for execution in EXECUTIONS}
    for execution, learner in learners.items():
        cpu_s(lambda learner=learner, batch=batches[execution]: learner.train(batch, 0.1), _WARM_UP)  # type: ignore[misc]
    for _ in range(rounds):
        for execution, learner in learners.items():
            batch = batches[execution]
            training[execution].append(cpu_s(lambda learner=learner, batch=batch: learner.train(batch, 0.1), _BATCHES))  # type: ignore[misc]
            estimating[execution].append(
                cpu_s(lambda learner=learner, batch=batch: learner.estimate(batch, 0.1), _BATCHES)  # type: ignore[misc]
            )
    cases: list[dict[str, object]] = []
    for execution, learner in learners.items():
        batch_s, estimate_s = statistics.median(training[execution]), statistics.median(estimating[execution])
        cases.append(
            {
                "env_id": env_id,
                "minibatches": minibatches,
                "rows_of_a_minibatch": SEGMENTS * STEPS // minibatches,
                "execution": learner.execution,
                "batch_cpu_ms": 1e3 * batch_s,
                "estimate_cpu_ms": 1e3 * estimate_s,
                "gradient_step_cpu_ms": 1e3 * (batch_s - estimate_s) / (EPOCHS * minibatches),
                "cpu_us_per_environment_step": 1e6 * batch_s / (SEGMENTS * STEPS),
            }
        )
    return cases


def main() -> None:
    """Measures, prints and writes all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        case
        for env_id in ENVIRONMENTS
        for minibatches in MINIBATCHES
        for case in measure(env_id, minibatches, arguments.rounds)
    ]
    table = Table("task", "rows", "execution", "batch, ms", "estimates, ms", "gradient step, ms", "us per step")
    for case in cases:
        numbers = ("batch_cpu_ms", "estimate_cpu_ms", "gradient_step_cpu_ms", "cpu_us_per_environment_step")
        names = (str(case[name]) for name in ("env_id", "rows_of_a_minibatch", "execution"))
        table.add_row(*names, *(f"{case[name]:.2f}" for name in numbers))
    Console().print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(
        json.dumps({"provenance": of_this_run(), "rounds": arguments.rounds, "cases": cases}, indent=2) + "\n"
    )
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
