"""`make bench-ranks`: what ranks of a learner cost and gain, and whether they learn what one learns.

One learner and one of several ranks train the same random batches in turn. The other ranks are `penstock learner`
processes on this host, over gloo, or over NCCL with a GPU each. Reported for each workload: the duration of a batch,
the CPU time of each process, the duration of a sum, and the largest difference between the parameters of both learners
after the first batch, with that of a third learner of one rank, whose parameters began with other last bits. CPU times
are comparable on a machine that does other work too; durations are not. The result is build/bench/ranks.json.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.gpu.learner_throughput import WORKLOADS, Workload, random_batch
from penstock.algo.network import Network
from penstock.config import Config
from penstock.learning.ranks.ranks import Ranks
from penstock.learning.run.assembly import learner_of
from penstock.learning.step.batches import BatchFeed, TrainingBatch
from penstock.learning.step.devices import torch_device
from penstock.learning.step.learner import Learner
from penstock.machine import library_variables
from penstock.types.records import plain
from penstock.types.replay import Batch
from penstock.types.spaces import BoxSpace
from tests.support.environments.tiny import spec_of
from tests.support.results.provenance import of_this_run
from tests.support.services.other_ranks import led
from tests.support.training.training import collect_batch

OUTPUT = Path(__file__).parents[1] / "build" / "bench" / "ranks.json"
WARM_UPS = 2
_ONE_THREAD = "OPENBLAS_NUM_THREADS"

_VECTOR = BoxSpace("float32", (17,), (-1.0,), (1.0,))
_WIDE = Network(hidden_sizes=(256, 256), activation="relu")
_LSTM = Network(memory="lstm", activation="relu")
_PIXELS = WORKLOADS["convolutional"]

CASES = {
    "two trunks of 64x64, 256 rows": Workload(BoxSpace("float32", (4,), (-1.0,), (1.0,)), 2, Network(), 32, 32, 4, 4),
    "two trunks of 256x256, 256 rows": Workload(_VECTOR, 6, _WIDE, 32, 32, 5, 4),
    "two trunks of 256x256, 2,048 rows": Workload(_VECTOR, 6, _WIDE, 256, 32, 5, 4),
    "LSTM of 64, 4 segments": Workload(_VECTOR, 2, _LSTM, 8, 32, 10, 2),
    "LSTM of 64, 32 segments": Workload(_VECTOR, 2, _LSTM, 64, 32, 10, 2),
    "convolutions, 256 frames": replace(_PIXELS, segments=16, unroll_length=64),
    "convolutions, 2,048 frames": replace(_PIXELS, segments=128, unroll_length=64),
}
"""Workloads by name, with the size of a minibatch. The segments of an LSTM are CartPole's."""


@dataclass(slots=True)
class Timed:
    """Ranks whose sums are timed; implements `Ranks`."""

    ranks: Ranks
    alone: bool = False
    seconds: list[float] = field(default_factory=list)
    numbers: int = 0

    def own(self, count: int) -> slice:
        """Implements `Ranks`."""
        return self.ranks.own(count)

    def add(self, values: Tensor) -> None:
        """Implements `Ranks`."""
        started = time.perf_counter()
        self.ranks.add(values)
        self.seconds.append(time.perf_counter() - started)
        self.numbers = values.numel()


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement; durations and CPU times are medians over the batches.

    Attributes:
        workload: Name of the workload.
        ranks: Number of ranks.
        parameters: Parameters of the policy.
        execution: Execution of the gradient steps.
        gradient_steps: Gradient steps per batch.
        batch_ms: Milliseconds per batch.
        cpu_ms: CPU milliseconds per batch of each rank's process, from rank 0 on.
        sum_ms: Milliseconds per sum over the ranks, most of which are waits for the others on a busy machine.
        sum_bytes: Bytes of a sum.
        largest_difference: Largest difference between a parameter after the first batch and that of one rank.
        difference_of_last_bits: The same of one rank, after its parameters were multiplied by 1 + 1e-7 x, x normal.
        largest_move: Largest change of a parameter in the first batch.
    """

    workload: str
    ranks: int
    parameters: int
    execution: str
    gradient_steps: int
    batch_ms: float
    cpu_ms: tuple[float, ...]
    sum_ms: float = 0.0
    sum_bytes: int = 0
    largest_difference: float = 0.0
    difference_of_last_bits: float = 0.0
    largest_move: float = 0.0


def config_of(workload: Workload, device: str) -> Config:
    """Returns the settings of a workload."""
    segments = workload.segments
    return Config(
        policy=plain(workload.network),
        learner={"device": device},
        actor={"environments": segments, "unroll_length": workload.unroll_length},
        sampling={"batch_segments": segments, "fresh_fraction": 1.0},
        ppo={"epochs": workload.epochs, "minibatches": workload.minibatches, "target_kl": None},
    )


def batches_of(workload: Workload, count: int) -> list[Batch]:
    """Returns batches of a workload."""
    if workload.network.memory is None:
        return [random_batch(workload, number) for number in range(1, count + 1)]
    made = collect_batch(
        segments=workload.segments, unroll_length=workload.unroll_length, network=workload.network, number=1, version=1
    )
    return [replace(made, head=replace(made.head, number=number)) for number in range(1, count + 1)]


def timed(
    trains: Callable[[Batch], object], batches: list[Batch], processes: list[psutil.Process]
) -> tuple[float, list[float]]:
    """Returns milliseconds per batch, and CPU milliseconds per batch of each process."""
    before = [cpu_s(process) for process in processes]
    started = time.perf_counter()
    for batch in batches:
        trains(batch)
    wall = time.perf_counter() - started
    after = [cpu_s(process) for process in processes]
    per_batch = 1e3 / len(batches)
    return wall * per_batch, [per_batch * (end - begin) for begin, end in zip(before, after, strict=True)]


def cpu_s(process: psutil.Process) -> float:
    """Returns the CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def compare(name: str, workload: Workload, device_name: str, count: int, rounds: int, size: int) -> list[Case]:
    """Measures one rank and several ranks in turn, a number of rounds of some batches each."""
    device, config = torch_device(device_name), config_of(workload, device_name)
    batches = batches_of(workload, 1 + WARM_UPS + rounds * size)
    spec = workload.spec if workload.network.memory is None else spec_of("CartPole-v1")
    feed = BatchFeed(device)
    with led(config, count) as ranks:
        added = Timed(ranks.lead.ranks)
        one, several = learner_of(config, spec, device), learner_of(config, spec, device, added)
        began = one.parameters.detach().clone()
        last_bits = _difference_of_last_bits(one, learner_of(config, spec, device), feed.tensors(batches[0]))
        ranks.lead.open(config, batches[0].columns.schema, several)

        def alone(batch: Batch) -> None:
            one.train(feed.tensors(batch), 0.0)
            _synchronise(device)

        def together(batch: Batch) -> None:
            ranks.link.send(batch)
            ranks.link.train(batch, 0.0)
            several.train(feed.tensors(batch), 0.0)
            _synchronise(device)

        together(batches[0])
        moved, difference = (_difference(one.parameters, other) for other in (began, several.parameters))
        for batch in batches[1 : 1 + WARM_UPS]:
            alone(batch)
            together(batch)
        added.seconds.clear()
        processes = [psutil.Process(), *(psutil.Process(other.pid) for other in ranks.others)]
        of_one, of_several = [], []
        for round_number in range(rounds):
            begin = 1 + WARM_UPS + round_number * size
            part = batches[begin : begin + size]
            of_one.append(timed(alone, part, processes[:1]))
            of_several.append(timed(together, part, processes))
    steps = workload.epochs * workload.minibatches
    return [
        _case(name, 1, one, steps, of_one),
        replace(
            _case(name, count, several, steps, of_several),
            sum_ms=1e3 * statistics.median(added.seconds),
            sum_bytes=4 * added.numbers,
            largest_difference=difference,
            difference_of_last_bits=last_bits,
            largest_move=moved,
        ),
    ]


def _difference_of_last_bits(one: Learner, other: Learner, batch: TrainingBatch) -> float:
    """Trains both on a batch, the other one with other last bits, and returns their largest difference."""
    noise = torch.randn(other.parameters.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        other.parameters.mul_(1 + 1e-7 * noise.to(other.parameters.device))
    for learner in (one, other):
        learner.train(batch, 0.0)
    return _difference(one.parameters, other.parameters)


def _difference(values: Tensor, others: Tensor) -> float:
    return float((values.detach() - others.detach()).abs().amax())


def _case(name: str, ranks: int, learner: Learner, steps: int, found: list[tuple[float, list[float]]]) -> Case:
    return Case(
        workload=name,
        ranks=ranks,
        parameters=learner.parameters.numel(),
        execution=learner.execution,
        gradient_steps=steps,
        batch_ms=statistics.median(wall for wall, _ in found),
        cpu_ms=tuple(np.median([cpu for _, cpu in found], axis=0).tolist()),
    )


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def link_cost(device_name: str, segments: int, count: int) -> dict[str, float]:
    """Measures the way of large batches to another rank: the time and CPU that each adds to a small one behind it."""
    workload = replace(_PIXELS, segments=4, unroll_length=16, epochs=1, minibatches=1)
    config, device = config_of(workload, device_name), torch_device(device_name)
    (small,), (large,) = batches_of(workload, 1), batches_of(replace(workload, segments=segments), 1)
    feed = BatchFeed(device)
    with led(config) as ranks:
        learner = learner_of(config, workload.spec, device, ranks.lead.ranks)
        ranks.lead.open(config, small.columns.schema, learner)
        processes = [psutil.Process(), psutil.Process(ranks.others[0].pid)]

        def train(batch: Batch) -> None:
            ranks.link.send(batch)
            ranks.link.train(batch, 0.0)
            learner.train(feed.tensors(batch), 0.0)

        def train_behind(batch: Batch) -> None:
            ranks.link.send(replace(large, head=replace(large.head, number=batch.number - 1)))
            train(batch)

        found = []
        for trains, first in ((train_behind, 0), (train, 1), (train_behind, 2)):
            numbers = range(2 + 2 * count * first, 2 + 2 * count * (first + 1), 2)
            numbered = [replace(small, head=replace(small.head, number=number)) for number in numbers]
            wall, cpu = timed(trains, numbered, processes)
            found.append((wall, sum(cpu)))
    (_, (wall, cpu_ms), (behind, cpu_behind)), size = found, sum(array.nbytes for array in large.columns.arrays)
    return {
        "batch_bytes": size,
        "batch_ms": behind - wall,
        "cpu_ms": cpu_behind - cpu_ms,
    }


def show(cases: list[Case], console: Console) -> None:
    """Prints all cases as a table."""
    table = Table(
        "workload", "ranks", "batch, ms", "CPU of each, ms", "sum, ms", "difference", "of last bits", "moved by"
    )
    for case in cases:
        table.add_row(
            case.workload,
            str(case.ranks),
            f"{case.batch_ms:.1f}",
            " + ".join(f"{each:.1f}" for each in case.cpu_ms),
            f"{case.sum_ms:.2f}" if case.ranks > 1 else "",
            f"{case.largest_difference:.1e}" if case.ranks > 1 else "",
            f"{case.difference_of_last_bits:.1e}" if case.ranks > 1 else "",
            f"{case.largest_move:.1e}" if case.ranks > 1 else "",
        )
    console.print(table)


def main() -> None:
    """Measures, prints and writes all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="setting learner.device")
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks on this host")
    parser.add_argument("--workloads", nargs="+", choices=list(CASES), default=list(CASES)[:-1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=4, help="batches of a round")
    arguments = parser.parse_args()
    if _ONE_THREAD not in os.environ:
        # NumPy chooses the number of its threads when it is imported, which has happened.
        library_variables.prepare(os.environ)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.ranks", *sys.argv[1:]])
    torch.set_num_threads(1)
    console, cases = Console(), list[Case]()
    for name in arguments.workloads:
        cases += compare(name, CASES[name], arguments.device, arguments.ranks, arguments.rounds, arguments.batches)
        show(cases[-2:], console)
    link = link_cost(arguments.device, segments=140, count=6)
    console.print({name: round(value, 2) for name, value in link.items()})
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "provenance": of_this_run(),
        "rounds": arguments.rounds,
        "cases": [asdict(case) for case in cases],
        "link": link,
    }
    OUTPUT.write_text(json.dumps(found, indent=2) + "\n")
    show(cases, console)
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
