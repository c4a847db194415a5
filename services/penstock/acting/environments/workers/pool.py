"""Environments in worker processes, which step them at the same time.

Each worker steps some of the environments one after another (`acting.environments.single_environments`). Observations,
actions and outcomes lie in memory that all of them share, and a socket to each worker carries requests and replies.
"""

import contextlib
import itertools
import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from penstock.acting.environments.making import Making
from penstock.acting.environments.progress import Progress
from penstock.acting.environments.single_environments import StepOutcome
from penstock.acting.environments.workers.shared import (
    DONE,
    STEP,
    Channel,
    Layout,
    SharedRows,
    arrays,
    encode_variations,
    line,
)
from penstock.errors import ConfigurationError, EnvironmentFailed, UnknownEnvironment
from penstock.machine.environment_arguments import written_table
from penstock.types.spaces import EnvironmentSpec, Leaves

_MODULE = "penstock.apps.environment_worker"
_END_S = 5.0
"""Seconds for closing the environments of a worker. It is then killed."""


class _Lost(Exception):
    """A worker that can't be used any more, with the reason; `environment` is the failed one; None: all."""

    def __init__(self, what: str, environment: int | None = None) -> None:
        super().__init__(what)
        self.what, self.environment = what, environment


class ProcessEnvironments:
    """Environments in worker processes, with the rows of `acting.environments.vectors.Environments`.

    A step is computed by all workers at once. If a worker ends, hangs, or has an environment that fails, only the
    episodes of its environments are lost (`StepOutcome.lost`): another worker replaces it, with new episodes. A worker
    that is lost again before its environments have taken the steps of a window is a failure of all.

    Attributes:
        notices: Lines for the user about parts of the environments that are used or left out.
    """

    def __init__(
        self,
        making: Making,
        count: int,
        *,
        progress: Progress,
        expected: EnvironmentSpec | None = None,
    ) -> None:
        """Starts workers for N environments, as many as given and at most N.

        Raises `ConfigurationError` as `make_environments`, or if a worker can't be started or does not make its
        environments.
        """
        self.count, self.progress, progress.environment = count, progress, None
        self._seeds, self._memory = list[int](), _anonymous_memory()
        bounds = np.linspace(0, count, min(making.workers, count) + 1).astype(int).tolist()
        self._workers: list[_Worker] = []
        try:
            for first, end in itertools.pairwise(bounds):
                self._workers.append(_Worker(making, len(self._workers), range(first, end), progress))
                self._workers[-1].start(expected)
            made = [worker.made() for worker in self._workers]
            self.spec = EnvironmentSpec.from_json(made[0]["spec"])
            if any(each[name] != made[0][name] for each in made for name in ("spec", "arrays")):
                raise ConfigurationError(
                    f"environments {making.env_id} made with the same arguments differ in their spaces; one policy"
                    " needs the same spaces everywhere, so they must depend only on the arguments"
                )
            self.timed, self.notices = all(each["timed"] for each in made), list[str](made[0]["notices"])
            observed = arrays(made[0]["arrays"])
            self._layout = Layout.of(self.spec, observed, count, len(making.info_metrics))
            self._rows = SharedRows(self._memory.fileno(), self._layout)
            for worker in self._workers:
                worker.share(self._memory, self._layout)
            for worker in self._workers:
                worker.finish()
        except _Lost as lost:
            self._kill()
            raise ConfigurationError(f"can't make the environments {making.env_id!r}: {lost.what}") from lost
        except BaseException:
            self._kill()
            raise
        self.observation: Leaves = self._rows.observation
        self.acting_observation = self.observation
        self.action_mask: NDArray[np.bool_] | None = self._rows.action_mask

    def reset(self, seeds: Sequence[int]) -> None:
        """Starts new episodes, after the end of all steps in progress."""
        self._seeds = list(seeds)
        lost = self._finish([worker for worker in self._workers if worker.awaited])
        if not lost:
            for worker in self._workers:
                worker.request(line(reset=[seeds[index] for index in worker.environments]))
            lost = self._finish(self._workers)
        for failed in lost.values():
            raise failed

    def step(self, action: tuple[NDArray[np.generic], ...]) -> StepOutcome:
        """Takes one step in each environment."""
        for rows, leaf in zip(self._rows.action, action, strict=True):
            rows[...] = leaf
        for worker in self._workers:
            worker.begin_step()
        return self._outcome(self._workers)

    def send(self, action: tuple[NDArray[np.generic], ...], environments: NDArray[np.intp]) -> None:
        """Begins a step in some environments, which are all environments of some workers."""
        for rows, leaf in zip(self._rows.action, action, strict=True):
            rows[environments] = leaf[environments]
        chosen = set(environments.tolist())
        for worker in self._workers:
            if worker.environments.start in chosen:
                assert chosen.issuperset(worker.environments)
                worker.begin_step()

    def receive(self, least: int) -> tuple[NDArray[np.intp], StepOutcome]:
        """Waits until some environments have ended their step, or until the time limit of a step in progress."""
        awaited = {worker.descriptor: worker for worker in self._workers if worker.awaited}
        poll, answered = select.poll(), list[_Worker]()
        for descriptor in awaited:
            poll.register(descriptor, select.POLLIN)
        while sum(len(worker.environments) for worker in answered) < least:
            remaining_s = min(worker.deadline_s for worker in awaited.values()) - time.monotonic()
            found = {descriptor for descriptor, _ in poll.poll(max(0.0, remaining_s) * 1000.0)}
            # A worker beyond its time limit is lost, and has thereby answered.
            for descriptor in found | {each for each, worker in awaited.items() if worker.is_late}:
                poll.unregister(descriptor)
                answered.append(awaited.pop(descriptor))
        answered.sort(key=lambda worker: worker.environments.start)
        indices = np.concatenate([np.array(worker.environments) for worker in answered])
        return indices, self._outcome(answered)

    def close(self) -> None:
        """Closes the environments and ends the workers. Raises `EnvironmentFailed` if an environment failed."""
        failures = [failure for worker in self._workers if (failure := worker.close())]
        self._memory.close()
        if failures:
            raise EnvironmentFailed(failures[0])

    def _outcome(self, workers: Sequence["_Worker"]) -> StepOutcome:
        """Waits for the end of a step of these workers; returns its outcome. Replaces workers that are lost."""
        lost = self._finish(workers)
        for worker in workers:
            worker.steps += 1
            self.progress.steps += len(worker.environments)
        reward, terminated, truncated, valid, begun = self._rows.outcome
        failures = dict[int, EnvironmentFailed]()
        for worker, failed in lost.items():
            self._replace(worker, failed)
            own = slice(worker.environments.start, worker.environments.stop)
            reward[own], terminated[own], truncated[own], valid[own], begun[own] = 0.0, False, True, False, True
            failures |= dict.fromkeys(worker.environments, failed)
        return StepOutcome(reward, terminated, truncated, valid, begun.copy(), failures, self._rows.info)

    def _finish(self, workers: Sequence["_Worker"]) -> dict["_Worker", EnvironmentFailed]:
        """Waits for the replies of these workers; returns the workers that failed, with the reason."""
        lost = {}
        for worker in workers:
            try:
                worker.finish()
            except _Lost as error:
                lost[worker] = EnvironmentFailed(error.what, error.environment)
        return lost

    def _replace(self, worker: "_Worker", failed: EnvironmentFailed) -> None:
        """Starts a worker in place of this one, and new episodes. Raises `EnvironmentFailed` if that fails too."""
        recently = worker.replaced_at is not None and worker.steps - worker.replaced_at < self.progress.window_steps
        if recently:
            raise failed
        worker.kill()
        worker.replaced_at, doing = worker.steps, self.progress.doing
        try:
            self.progress.doing = "make"
            worker.start(self.spec)
            worker.made()
            worker.share(self._memory, self._layout)
            worker.finish()
            self.progress.doing = "reset"
            worker.request(
                line(reset=[_another_seed(self._seeds[index], worker.steps) for index in worker.environments])
            )
            worker.finish()
        except (_Lost, ConfigurationError) as error:
            raise EnvironmentFailed(f"{error}, after {failed.what}") from error
        finally:
            self.progress.doing = doing

    def _kill(self) -> None:
        self._memory.close()
        for worker in self._workers:
            worker.kill()


class _Worker:
    """A worker process, which can be started again after it was killed.

    Attributes:
        environments: Indices of its environments.
        steps: Number of steps, also of the workers that it replaces.
        replaced_at: Number of steps after which it was last started in place of another; None: never.
        awaited: Whether it has a request whose end was not awaited.
        deadline_s: Time at which its last request must have ended, in seconds of `time.monotonic`.
    """

    def __init__(self, making: Making, number: int, environments: range, progress: Progress) -> None:
        self.environments = environments
        self.steps, self.awaited, self.deadline_s = 0, False, 0.0
        self.replaced_at: int | None = None
        self._making, self._number, self._progress, self._timeout_s = making, number, progress, making.timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._changes = 0

    def start(self, expected: EnvironmentSpec | None) -> None:
        """Starts the process, which begins to make its environments. Raises `_Lost` if the system refuses it."""
        ours, theirs = socket.socketpair()
        seconds, fraction = int(self._timeout_s), int(self._timeout_s % 1.0 * 1e6)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", seconds, fraction))
        self._channel, making = Channel(ours), self._making
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-Pm", _MODULE, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    env=os.environ.copy(),
                    pass_fds=[theirs.fileno()],
                )
        except OSError as error:
            ours.close()
            raise _Lost(f"worker {self._number} can't be started: {error.strerror}") from error
        self._changes = making.turns.changes if making.turns is not None else 0
        self.request(
            line(
                arguments=sys.argv,
                # The generators of this process are seeded, and so are the constructors of its workers.
                seed=random.getrandbits(64),
                first=self.environments.start,
                count=len(self.environments),
                env_id=making.env_id,
                kwargs=written_table(making.kwargs),
                imports=list(making.imports),
                wrappers=[written_table(each) for each in making.wrappers],
                use_masks=making.use_masks,
                python=making.python,
                info_metrics=list(making.info_metrics),
                variations=None if making.turns is None else encode_variations(making.turns),
                expected=expected and expected.to_json(),
            )
        )

    def made(self) -> dict[str, Any]:
        """Waits for the environments, and returns their description. Raises `ConfigurationError` if it was refused."""
        reply: dict[str, Any] = json.loads(self._reply())
        if "refused" in reply:
            raise (UnknownEnvironment if reply["unknown"] else ConfigurationError)(reply["refused"])
        return reply

    def share(self, memory: IO[bytes], layout: Layout) -> None:
        """Sends the shared memory."""
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel.connection, [STEP], [memory.fileno()])
        self.request(line(**layout.to_json()))

    def request(self, message: bytes) -> None:
        """Sends a request. A worker that has ended is noticed when its reply is read."""
        self.awaited, self.deadline_s = True, time.monotonic() + self._timeout_s
        with contextlib.suppress(OSError):
            self._channel.send(message)

    def begin_step(self) -> None:
        """Requests a step, after the variants if they have changed."""
        turns = self._making.turns
        if turns is not None and turns.changes != self._changes:
            self._changes = turns.changes
            self.request(line(variations=encode_variations(turns)))
            # A reply that is lost now is missing at the end of the step, too.
            with contextlib.suppress(_Lost):
                self.finish()
        self.request(STEP)

    @property
    def descriptor(self) -> int:
        """Descriptor of the connection, which is readable when a reply has arrived."""
        return self._channel.connection.fileno()

    @property
    def is_late(self) -> bool:
        """Whether its last request has exceeded the time limit."""
        return time.monotonic() >= self.deadline_s

    def finish(self) -> None:
        """Waits for the end of a step or a reset. Raises `_Lost`."""
        self.awaited = False
        if (reply := self._reply()) == DONE:
            return
        told = json.loads(reply)
        if "failed" in told:
            index = told["environment"]
            raise _Lost(told["failed"], None if index is None else self.environments.start + index)
        for note in told["notes"]:
            self._progress.note(note)
        for notice in told["notices"]:
            self._progress.notice(notice)

    def close(self) -> str:
        """Ends the worker; returns the failure of an environment in it."""
        failure = ""
        with contextlib.suppress(OSError):
            self._channel.connection.shutdown(socket.SHUT_WR)
            self._channel.connection.settimeout(_END_S)
            while message := self._channel.receive():
                failure = json.loads(message).get("failed", "") if message != DONE else ""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        self.kill()
        return failure

    def kill(self) -> None:
        """Kills the worker, in any state."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._channel.connection.close()
            self._process = None

    def _reply(self) -> bytes:
        try:
            reply = self._channel.receive(wait=not self.is_late)
        except TimeoutError:
            doing = self._progress.doing or "step"
            raise _Lost(f"{self} has not returned from {doing} for {self._timeout_s:g} s{self._id}") from None
        if reply:
            return reply
        assert self._process is not None
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            raise _Lost(f"{self} has closed its connection to the actor{self._id}") from None
        if code == -signal.SIGKILL:
            raise _Lost(f"{self} was ended by SIGKILL{self._id}, as the system does when memory runs short")
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise _Lost(f"{self} {how}{self._id}; its log may say why, and an environment must not end its process")

    @property
    def _id(self) -> str:
        return f" ({self._making.env_id})"

    def __str__(self) -> str:
        known = self._progress.numbers
        numbers = [str(known[index] if index < len(known) else index) for index in self.environments]
        return f"worker {self._number} (environment{'s' if len(numbers) > 1 else ''} {', '.join(numbers)})"


def _another_seed(seed: int, steps: int) -> int:
    """Returns a seed, of 62 bits, for an environment that begins again after some steps."""
    state = np.random.SeedSequence([seed, steps]).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(2))


def _anonymous_memory() -> IO[bytes]:
    """Returns a file without a name, which the system frees when the last process has ended."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("penstock environments"), "r+b", 0)
    return tempfile.TemporaryFile()
