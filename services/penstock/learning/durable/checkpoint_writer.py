"""Periodic checkpoints, written while training continues.

The training thread copies the state of the learner. Another thread encodes, hashes and writes it, so that training does
not wait for a large file on a slow or shared disk.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.learning.durable import checkpoints
from penstock.learning.durable.checkpoints import Captured, RunProgress
from penstock.learning.durable.retried_writes import RetriedWrites
from penstock.learning.step.learner import Learner
from penstock.runs.folder import RunFolder
from penstock.telemetry import metrics

_KIND = "checkpoint"


class CheckpointWriter:
    """Writer of a run's numbered checkpoints, in their order. Used by the training thread."""

    def __init__(self, learner: Learner, folder: RunFolder, writes: RetriedWrites, *, keep: int) -> None:
        """Creates the thread. `keep` is the number of newest checkpoints that are kept."""
        self._learner, self._folder, self._writes, self._keep = learner, folder, writes, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoints")
        self._unwritten: Future[None] | None = None
        metrics.restart_age(metrics.LEARNER_CHECKPOINT_AGE)

    def begin(self, progress: RunProgress) -> None:
        """Copies the learner's state, and writes it while training continues.

        Waits for the previous checkpoint if that is still being written, so that at most one copy is in memory. An
        error of that one is raised here, except for failures to write, which are retried.
        """
        self._settle()
        captured = checkpoints.capture(self._learner, progress)
        self._unwritten = self._thread.submit(self._write, captured, time.monotonic())

    def save(self, progress: RunProgress) -> None:
        """Writes a checkpoint of the learner's state before it returns."""
        self._settle()
        self._write(checkpoints.capture(self._learner, progress), time.monotonic())

    def close(self) -> None:
        """Stops the thread after the checkpoint that it is writing."""
        self._thread.shutdown()

    def _settle(self) -> None:
        unwritten, self._unwritten = self._unwritten, None
        if unwritten is not None:
            unwritten.result()

    def _write(self, captured: Captured, taken: float) -> None:
        snapshot = captured.encoded()

        def save() -> None:
            checkpoints.save(self._folder, snapshot, self._keep)
            metrics.restart_age(metrics.LEARNER_CHECKPOINT_AGE, taken)
            metrics.LEARNER_CHECKPOINT_STEPS.set(snapshot.progress.env_steps)

        self._writes.write(_KIND, save)
