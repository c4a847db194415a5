"""Samples per second of the learner by policy (small, medium, convolutional), execution, and precision.

The learner trains on random batches in the form in which the replay service sends them. Each batch is copied to the
device while the previous one trains. A sample is one valid step in one gradient, so that a step counts once per epoch.
One-time work (captures, compilation) ends before the clock starts and is reported separately. The result is
build/bench/gpu/learner.json. `--device cpu --small` is a check that takes a minute.
"""

import argparse
import itertools
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from penstock.acting.values.spaces import segment_schema
from penstock.algo.network import Network
from penstock.config import Execution, PPOConfig, Precision, SamplingConfig
from penstock.learning.step.batches import BatchFeed
from penstock.learning.step.devices import torch_device
from penstock.learning.step.learner import Learner
from penstock.types.block import Columns
from penstock.types.replay import Batch, BatchHead, StoreCounts
from penstock.types.spaces import BoxSpace, DiscreteSpace, EnvironmentSpec, Tree
from tests.support.results.provenance import of_this_run

RESULTS = Path(__file__).parents[2] / "build" / "bench" / "gpu"
WARM_UPS = 3
EPISODE_STEPS = 100
"""Mean length of an episode. A row that only resets follows each, so batches differ in their number of valid steps."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A policy, and its training data.

    Attributes:
        observation: Space of the observations.
        actions: Number of discrete actions.
        network: Network of the policy.
        segments, unroll_length: Size of a batch.
        epochs, minibatches: Passes over a batch, and minibatches per pass.
    """

    observation: BoxSpace
    actions: int
    network: Network
    segments: int
    unroll_length: int
    epochs: int
    minibatches: int

    @property
    def spec(self) -> EnvironmentSpec:
        """Spec of the environment."""
        return EnvironmentSpec("workload", Tree.of(self.observation), Tree.of(DiscreteSpace(self.actions)))

    def learner(
        self,
        device: torch.device,
        *,
        precision: Precision = "float32",
        execution: Execution = "auto",
        ppo: Mapping[str, Any] = MappingProxyType({}),
    ) -> Learner:
        """Makes a learner of the policy, with further settings of `ppo`."""
        return Learner(
            self.spec,
            self.network,
            ppo=PPOConfig(epochs=self.epochs, minibatches=self.minibatches, **ppo),
            sampling=SamplingConfig(batch_segments=self.segments),
            device=device,
            seed=0,
            precision=precision,
            execution=execution,
        )


WORKLOADS = {
    "small": Workload(
        BoxSpace("float32", (8,), (-1.0,), (1.0,)),
        4,
        Network(),
        segments=128,
        unroll_length=32,
        epochs=4,
        minibatches=8,
    ),
    "medium": Workload(
        BoxSpace("float32", (17,), (-1.0,), (1.0,)),
        6,
        Network(hidden_sizes=(256, 256)),
        segments=128,
        unroll_length=32,
        epochs=4,
        minibatches=8,
    ),
    "convolutional": Workload(
        BoxSpace("uint8", (4, 84, 84), (0.0,), (255.0,)),
        6,
        Network(hidden_sizes=(512,), trunk="shared", activation="relu", normalise_observations=False),
        segments=64,
        unroll_length=32,
        epochs=4,
        minibatches=4,
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement.

    Attributes:
        policy, execution, precision: Configuration of the learner.
        samples_per_s: Samples per second over the timed batches.
        batch_ms: Mean milliseconds per batch.
        first_s: Seconds of the batches before the clock starts, including one-time work.
    """

    policy: str
    execution: str
    precision: str
    samples_per_s: float
    batch_ms: float
    first_s: float


def random_batch(workload: Workload, number: int) -> Batch:
    """Returns a batch of which half is replayed; it is read-only, like the batches of the services."""
    generator = np.random.default_rng(number)
    schema = segment_schema(workload.spec, workload.unroll_length)
    segments, steps = workload.segments, workload.unroll_length
    terminated = generator.random((segments, steps)) < 1.0 / EPISODE_STEPS
    valid = np.ones_like(terminated)
    valid[:, 1:] = ~terminated[:, :-1]
    shape = (segments, steps + 1, *workload.observation.shape)
    pixels = workload.observation.dtype == "uint8"
    columns = {
        "observation": generator.integers(256, size=shape) if pixels else generator.normal(size=shape),
        "action": generator.integers(workload.actions, size=(segments, steps)),
        "reward": generator.normal(size=(segments, steps)),
        "terminated": terminated & valid,
        "truncated": np.zeros_like(valid),
        "valid": valid,
        "behaviour_log_prob": np.full((segments, steps), -np.log(workload.actions)),
        "discounted_return": generator.normal(size=(segments, steps)),
    }
    arrays = tuple(columns[column.name].astype(column.dtype) for column in schema.columns)
    for array in arrays:
        array.setflags(write=False)
    return Batch(
        BatchHead(
            number,
            segments // 2,
            np.arange(segments, dtype=np.uint64),
            np.full(segments, number, np.int64),
            np.ones(segments),
            np.ones(segments),
            StoreCounts(),
        ),
        Columns(schema, arrays),
    )


def measure(
    name: str, workload: Workload, device: torch.device, execution: Execution, precision: Precision, batches: int
) -> Case:
    """Measures the pace over this number of batches."""
    learner = workload.learner(device, precision=precision, execution=execution)
    feed = BatchFeed(device)
    made = [random_batch(workload, number) for number in range(4)]
    valid = [int(batch.columns.column("valid").sum()) for batch in made]
    feed.arrived(made[0])

    def train(first: int, last: int) -> float:
        _synchronise(device)
        started = time.perf_counter()
        for number in range(first, last):
            tensors = feed.tensors(made[number % len(made)])
            feed.arrived(made[(number + 1) % len(made)])
            learner.train(tensors, 0.0)
        _synchronise(device)
        return time.perf_counter() - started

    first_s = train(0, WARM_UPS)
    seconds = train(WARM_UPS, WARM_UPS + batches)
    feed.close()
    samples = workload.epochs * sum(valid[number % len(made)] for number in range(WARM_UPS, WARM_UPS + batches))
    return Case(name, execution, precision, samples / seconds, seconds / batches * 1e3, first_s)


def precisions_of(device: torch.device) -> list[Precision]:
    """Returns the precisions that a device has."""
    return [each for each in get_args(Precision) if each != "tf32" or device.type == "cuda"]


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> str:
    """Returns the name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    models = (line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    return next(models, platform.processor()).partition(":")[2].strip()


def show(cases: list[Case], console: Console) -> None:
    """Prints all cases as a table."""
    table = Table(
        "policy", "execution", "precision", "samples/s", "ms per batch", "over eager float32", "first batches"
    )
    eager = {case.policy: case.samples_per_s for case in reversed(cases) if case.execution == "eager"}
    for case in cases:
        over = f"{case.samples_per_s / eager[case.policy]:.2f}" if case.policy in eager else ""
        table.add_row(
            case.policy,
            case.execution,
            case.precision,
            f"{case.samples_per_s:,.0f}",
            f"{case.batch_ms:.1f}",
            over,
            f"{case.first_s:.1f} s",
        )
    console.print(table)


def main() -> None:
    """Measures, prints and writes every case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="setting learner.device")
    parser.add_argument("--policies", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--executions", nargs="+", choices=get_args(Execution))
    parser.add_argument("--precisions", nargs="+", choices=get_args(Precision), help="all that the device has")
    parser.add_argument("--batches", type=int, default=50, help="number of timed batches")
    parser.add_argument("--threads", type=int, default=1, help="setting learner.threads")
    parser.add_argument("--small", action="store_true", help="train two batches of eight segments, as a quick check")
    parser.add_argument("--output", default="learner.json", help="name of the result in build/bench/gpu")
    arguments = parser.parse_args()
    output = RESULTS / arguments.output
    device, console = torch_device(arguments.device), Console()
    torch.set_num_threads(arguments.threads)
    possible = ["eager", "compiled", *(["graphed"] if device.type == "cuda" else [])]
    cases: list[Case] = []
    for name, execution, precision in itertools.product(
        arguments.policies, arguments.executions or possible, arguments.precisions or precisions_of(device)
    ):
        workload, batches = WORKLOADS[name], arguments.batches
        if arguments.small:
            workload, batches = replace(workload, segments=8, epochs=1), 2
        cases.append(measure(name, workload, device, execution, precision, batches))
        console.print(f"{name}, {execution}, {precision}: {cases[-1].samples_per_s:,.0f} samples/s", highlight=False)
        # Written after every case, because compilation takes minutes and a later case may fail.
        output.parent.mkdir(parents=True, exist_ok=True)
        found = {
            "provenance": of_this_run(),
            "machine": machine(device),
            "torch": torch.__version__,
            "cases": [asdict(case) for case in cases],
        }
        output.write_text(json.dumps(found, indent=2) + "\n")
    show(cases, console)
    console.print(f"{machine(device)}, torch {torch.__version__}; written to {output}", highlight=False)


if __name__ == "__main__":
    main()
