"""Samples of a run's status during the drill, and what they say: gaps in progress, pace, and versions that go back."""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.e2e.stack import ROOT
from tests.support.machine.timing import wait_in_drill

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """The status at one moment; zeros if the learner did not answer.

    Attributes:
        time: Time of the answer, by `time.time`.
        answered: Whether the learner answered.
        phase: Phase of the run.
        version: Version of the policy.
        env_steps: Environment steps that were trained.
        actors: Actors that have joined.
        wanted_actors: Actors that the learner could use; 0 if unknown.
        best: Best mean return of an evaluation so far.
    """

    time: float
    answered: bool = False
    phase: str = ""
    version: int = 0
    env_steps: int = 0
    actors: int = 0
    wanted_actors: int = 0
    best: float = 0.0

    @classmethod
    def read(cls, line: str) -> "Sample":
        """Reads a line of `tests.e2e.nodes.watcher`."""
        found: dict[str, Any] = json.loads(line)
        status = found["status"]
        if status is None:
            return cls(found["time"])
        best = status["best_evaluation"]
        return cls(
            found["time"],
            True,
            status["phase"],
            status["version"],
            status["env_steps"],
            status["actors"],
            status.get("wanted_actors") or 0,
            best["return_mean"] if best else 0.0,
        )


class Watch:
    """Reads the samples of one run in a thread until it is ended. Use it as a context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        """Starts a command that runs `tests.e2e.nodes.watcher`."""
        self.samples: list[Sample] = []
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._read, name="watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()

    @property
    def now(self) -> Sample:
        """The newest sample."""
        return self.samples[-1] if self.samples else Sample(0.0)

    def until(self, condition: Callable[[Sample], bool], what: str) -> Sample:
        """Waits until the newest sample is of a learner that answers and meets a condition; returns it."""

        def met() -> Sample | None:
            assert self._process.poll() is None, f"the watch ended before {what}"
            sample = self.now
            return sample if sample.answered and condition(sample) else None

        return wait_in_drill(met, what)

    def trains(self) -> Sample:
        """Waits until a sample is newer than this call and has a newer version; returns it."""
        began, version = time.time(), self.highest_version
        return self.until(lambda sample: sample.time > began and sample.version > version, "a new version")

    @property
    def highest_version(self) -> int:
        """The highest version so far."""
        return max((sample.version for sample in self.samples), default=0)

    def between(self, start: float, end: float) -> list[Sample]:
        """Returns the samples between two times."""
        return [sample for sample in self.samples if start <= sample.time <= end]

    def longest_gap_s(self, start: float, end: float) -> float:
        """Returns the longest time without a new version that ends between two times, or has not ended by then."""
        highest, since, longest = 0, start, 0.0
        for sample in self.samples:
            if sample.time > end:
                break
            if sample.version > highest:
                if sample.time > start:
                    longest = max(longest, sample.time - max(since, start))
                highest, since = sample.version, sample.time
        return max(longest, end - max(since, start))

    def pace(self, start: float, end: float) -> float:
        """Returns trained environment steps per second between two times."""
        seen = [sample for sample in self.between(start, end) if sample.answered]
        return (seen[-1].env_steps - seen[0].env_steps) / (seen[-1].time - seen[0].time)

    def actors(self, start: float, end: float) -> float:
        """Returns the mean number of actors that had joined between two times."""
        seen = [sample.actors for sample in self.between(start, end) if sample.answered]
        return sum(seen) / len(seen)

    @property
    def backwards(self) -> int:
        """How often the version was lower than in an earlier sample."""
        highest, wrong = 0, 0
        for sample in self.samples:
            # A learner that was started again has no version before its first batch.
            if sample.answered and sample.phase != "waiting":
                wrong += sample.version < highest
                highest = max(highest, sample.version)
        return wrong

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.samples.append(Sample.read(line))
