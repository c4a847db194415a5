"""Runs the training loop with only shared memory between its processes: an upper bound for the services' data path.

An actor and a learner use the collector, learner and training loop of `penstock train`. Windows pass through a ring
that both processes map, weights through a second shared block, and semaphores synchronise them. There are no messages,
priorities or checks, no other process can join, and a dead process ends the run. Called by `loop.py`.
"""

import argparse
import json
import multiprocessing as mp
import sys
import tempfile
import time
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.acting.collector import Collector
from penstock.acting.policies.runners import runner_of
from penstock.acting.values.spaces import segment_schema
from penstock.apps.environments import make_configured
from penstock.config import Config, build, merge
from penstock.presets import preset_values
from penstock.runs.folder import RunFolder
from penstock.types.block import Columns, Schema
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Batch, BatchHead, CommitOutcome, SamplingPlan, StoreCounts
from penstock.types.run import Assignment, Weights
from penstock.types.spaces import EnvironmentSpec
from tests.support.training.single_process import learn

RING_WINDOWS = 16
_WEIGHTS_BYTES = 2**22
_PATIENCE_S = 30.0


class SharedRing:
    """Memory that both processes map: the windows of one actor, and the weights for it."""

    def __init__(self, context: SpawnContext, schema: Schema, window: int) -> None:
        self.schema, self.window = schema, window
        self._memory = context.RawArray("B", schema.segment_bytes * window * RING_WINDOWS)
        self.versions = context.RawArray("q", RING_WINDOWS)
        self.permits, self.filled = context.Semaphore(0), context.Semaphore(0)
        self._weights, self._size = context.RawArray("B", _WEIGHTS_BYTES), context.Value("q")
        self.published = context.RawValue("q", -1)
        self.cpu_s = context.RawValue("d", 0.0)
        self.ended = context.Event()

    def columns(self) -> Columns:
        """Returns all rows of the ring, column by column."""
        arrays, offset = [], 0
        for column in self.schema.columns:
            shape = (self.window * RING_WINDOWS, *column.segment_shape(self.schema.unroll_length))
            count = int(np.prod(shape))
            array = np.frombuffer(self._memory, column.dtype, count, offset).reshape(shape)
            arrays.append(array)
            offset += array.nbytes
        return Columns(self.schema, tuple(arrays))

    def put_weights(self, weights: Weights) -> None:
        """Publishes weights to the actor."""
        with self._size.get_lock():
            memoryview(self._weights).cast("B")[: len(weights.data)] = weights.data
            self._size.value, self.published.value = len(weights.data), weights.version

    def weights(self) -> Weights:
        """Returns the weights published last."""
        with self._size.get_lock():
            return Weights.of(self.published.value, bytes(memoryview(self._weights).cast("B")[: self._size.value]))


def act(config: Config, ring: SharedRing) -> None:
    """Runs the actor: collects a window for each permit until the run ends."""
    torch.set_num_threads(1)
    environments = make_configured(config.environment, config.actor.environments)
    numbers = tuple(range(environments.count))
    assignment = Assignment(slot=0, incarnation=1, environments=numbers, token=b"", seed=config.run.seed)
    collector = Collector(environments, assignment, schema=ring.schema, discount=config.ppo.discount)
    rows, slot, runner = ring.columns().arrays, 0, None
    while ring.permits.acquire(timeout=_PATIENCE_S) and not ring.ended.is_set():
        if runner is None:
            runner = runner_of(ring.weights(), inference=config.actor.inference, module=config.policy.module)
        elif ring.published.value != runner.version:
            runner.refresh(ring.weights())
        window = collector.collect(runner)
        begin = slot * ring.window
        for row, column in zip(rows, window.columns.arrays, strict=True):
            row[begin : begin + ring.window] = column
        ring.versions[slot] = window.head.version
        slot = (slot + 1) % RING_WINDOWS
        ring.cpu_s.value = time.process_time()
        ring.filled.release()
    environments.close()


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress of a run: seconds, environment steps, and CPU seconds of both its processes."""

    seconds: float
    env_steps: int
    actor_cpu_s: float
    learner_cpu_s: float


class FifoSource:
    """The learner's `BatchSource` and `WeightSink`.

    A batch has the size of the services' batches: its fresh segments are the next windows, and its replayed segments
    are drawn uniformly from the ring.
    """

    waiting_for = None

    def __init__(self, ring: SharedRing) -> None:
        self._ring, self._columns = ring, ring.columns()
        self._read = 0
        self._generator = np.random.default_rng(0)
        self._number = 0
        self.readings: list[Reading] = []

    def publish(self, weights: Weights) -> None:
        """Publishes weights to the actor."""
        self._ring.put_weights(weights)

    def open(self, plan: SamplingPlan) -> None:
        """Issues as many permits as the gate would issue grants."""
        self._plan, window = plan, self._ring.window
        if plan.fresh_segments % window or plan.outstanding_limit > window * RING_WINDOWS // 2:
            sys.exit(f"a batch's {plan.fresh_segments} fresh segments do not fit windows of {window}, or the ring")
        self._windows = plan.fresh_segments // window
        for _ in range(plan.outstanding_limit // window):
            self._ring.permits.release()

    def adjust(self, plan: SamplingPlan) -> None:
        """Keeps the degree of the first plan."""

    def next(self, timeout_s: float) -> Batch | None:
        """Returns the next windows, together with older rows."""
        ring, plan = self._ring, self._plan
        for _ in range(self._windows):
            if not ring.filled.acquire(timeout=_PATIENCE_S):
                sys.exit("the actor sent no window")
        slots = (self._read + np.arange(self._windows)) % RING_WINDOWS
        self._read += self._windows
        fresh = (slots[:, None] * ring.window + np.arange(ring.window)).reshape(-1)
        # Excludes rows that the actor may be writing.
        behind = max(1, min(self._read, RING_WINDOWS - plan.outstanding_limit // ring.window))
        ages = self._generator.integers(behind * ring.window, size=plan.batch_segments - fresh.size)
        old = (self._read * ring.window - 1 - ages) % (RING_WINDOWS * ring.window)
        rows = np.concatenate([fresh, old])
        number, self._number = self._number, self._number + 1
        self.readings.append(
            Reading(
                time.perf_counter(),
                number * self._windows * ring.window * ring.schema.unroll_length,
                ring.cpu_s.value,
                time.process_time(),
            )
        )
        return Batch(
            BatchHead(
                number,
                plan.fresh_segments,
                rows.astype(np.uint64),
                np.array(ring.versions, np.int64)[rows // ring.window],
                np.ones(rows.size),
                np.ones(rows.size),
                StoreCounts(stored=RING_WINDOWS * ring.window, capacity=RING_WINDOWS * ring.window),
            ),
            Columns(ring.schema, tuple(array[rows] for array in self._columns.arrays)),
        )

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Issues permits for as many windows as were trained."""
        for _ in range(self._windows):
            self._ring.permits.release()
        done: Future[CommitOutcome] = Future()
        done.set_result(CommitOutcome(priorities.size, 0))
        return done


class NoEvaluations:
    """An evaluation desk that evaluates nothing, because only throughput is measured."""

    def ask(self, task: EvaluationTask) -> None:
        """Ignores the task."""

    def result(self, timeout_s: float) -> EvaluationResult | None:
        """Returns None."""
        return None


def train(config: Config, folder: Path, env_steps: int) -> list[Reading]:
    """Trains for this number of environment steps, fewer than the run has; returns the progress at each batch."""
    torch.set_num_threads(1)
    environments = make_configured(config.environment, 1)
    spec: EnvironmentSpec = environments.spec
    environments.close()
    schema, context = segment_schema(spec, **config.recorded), mp.get_context("spawn")
    ring = SharedRing(context, schema, config.actor.environments)
    actor = context.Process(target=act, args=(config, ring), name="actor")
    actor.start()
    run_folder = RunFolder(folder)
    run_folder.create()
    source = FifoSource(ring)
    learn(
        config,
        spec,
        source=source,
        sink=source,
        desk=NoEvaluations(),
        folder=run_folder,
        stopping=lambda: bool(source.readings) and source.readings[-1].env_steps >= env_steps,
    )
    ring.ended.set()
    ring.permits.release()
    actor.join(_PATIENCE_S)
    if actor.is_alive():
        actor.kill()
    return source.readings


def main() -> None:
    """Trains, and prints the pace and the CPU seconds per million environment steps as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", required=True)
    parser.add_argument("--total-steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    never = {"interval_steps": 10**12}
    wanted: dict[str, Any] = {
        "run": {"total_steps": 2 * arguments.total_steps, "seed": arguments.seed},
        "evaluation": never,
        "sampling": {"off_policy_degree": 1},
    }
    config = build(merge(preset_values(arguments.preset), wanted))
    with tempfile.TemporaryDirectory(prefix="penstock-fifo-") as folder:
        readings = train(config, Path(folder), arguments.total_steps)
    # The first quarter is the warm-up.
    first, last = readings[len(readings) // 4], readings[-1]
    steps = last.env_steps - first.env_steps
    json.dump(
        {
            "env_steps_per_s": steps / (last.seconds - first.seconds),
            "cpu_s_per_million": {
                "actor": (last.actor_cpu_s - first.actor_cpu_s) / steps * 1e6,
                "learner": (last.learner_cpu_s - first.learner_cpu_s) / steps * 1e6,
            },
        },
        sys.stdout,
    )


if __name__ == "__main__":
    main()
