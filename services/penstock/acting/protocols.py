"""Interfaces through which actors and evaluators use policies, services, their process and its log.

`acting.policies.runners` chooses the implementation of a policy; `rpc` implements the services, `process` the process,
and `telemetry` the log.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.algo.network import Network, Noise
from penstock.types.evaluation import EvaluationResult, EvaluationTask
from penstock.types.replay import Grant, Window
from penstock.types.run import ActorReport, Assignment, EnvironmentFault, Weights
from penstock.types.spaces import Leaves, Library


class WindowPolicy(Protocol):
    """A policy that acts on the rows of one window of N environments, T steps long. Used by one thread."""

    def act(
        self, observation: Leaves, *, mask: NDArray[np.bool_] | None = None, begun: NDArray[np.bool_] | None = None
    ) -> Leaves:
        """Samples one action per row with the noise of the next step. Takes the arguments of `Runner.act`.

        The next call may overwrite the arrays that it returns.
        """

    def log_probs(self) -> NDArray[np.float32]:
        """Returns the log probabilities of the actions of all T steps, <float32>[N, T]."""


class Runner(Protocol):
    """A policy that acts on batches of observations. Used by one thread.

    With memory it keeps the state of each row from call to call. The arrays that it returns are the caller's.
    """

    library: Library
    """Library that computes the actions."""
    version: int
    """Version of the loaded weights."""

    @property
    def noise(self) -> tuple[Noise, ...]:
        """Random numbers from which one action is sampled, for each leaf of the action."""

    @property
    def network(self) -> Network:
        """Architecture of the policy, which decides how continuous actions are scaled (`ActionMap`)."""

    @property
    def state(self) -> NDArray[np.float32] | None:
        """<float32>[N, parts, H] states after the last call, or [1, parts, H] before the first; None without memory."""

    def refresh(self, weights: Weights) -> None:
        """Loads weights of the same architecture, unless their version is already loaded."""

    def act(
        self,
        observation: Leaves,
        noise: NDArray[np.float32],
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> tuple[Leaves, NDArray[np.float32]]:
        """Samples one action per row from the policy at this runner's temperature.

        Args:
            observation: [N, ...] raw observations, one array per leaf.
            noise: <float32>[N, sum of sizes of `noise`] random numbers from `Streams.draw`.
            mask: <bool>[N, bits] legal actions; None: all.
            begun: <bool>[N] first rows of episodes; None: no row. Not used without memory.

        Returns:
            The actions, one array per leaf, and their log probabilities at that temperature, <float32>[N].
        """

    def begin(self, noise: NDArray[np.float32]) -> WindowPolicy:
        """Begins a window, which ends with the next call of this runner.

        `noise` is <float32>[N, T, sum of sizes of `noise`], random numbers from `Streams.draw`.
        """

    def act_greedily(
        self,
        observation: Leaves,
        *,
        mask: NDArray[np.bool_] | None = None,
        begun: NDArray[np.bool_] | None = None,
    ) -> Leaves:
        """Returns the most likely action per row. Takes the arguments of `act` and returns as it does."""


class RunLink(Protocol):
    """An actor's place in the run. Every call raises `RunFinished` at the end of the run."""

    def assignment(self, timeout_s: float) -> Assignment | None:
        """Waits for the actor's assignment, which may change later; None on timeout."""

    def at_least(self, version: int, timeout_s: float) -> Weights | None:
        """Waits for weights of this version or newer and returns the newest; None on timeout."""

    def join_again(self, taken_by: int = 0) -> None:
        """Gives up the place, which incarnation `taken_by` has taken (0: none has), and joins as a new actor."""

    def report(self, report: ActorReport) -> None:
        """Sends a report, without blocking."""

    def report_fault(self, fault: EnvironmentFault) -> None:
        """Sends a fault of an environment, without blocking."""


class SegmentSink(Protocol):
    """Destination of an actor's windows under one assignment.

    `next_grant` and `send` raise `PlaceLost` if the assignment is no longer valid.
    """

    def next_grant(self, timeout_s: float) -> Grant | None:
        """Waits for a grant to collect one window and returns it; None on timeout."""

    def send(self, window: Window) -> None:
        """Copies and sends a window, so that its columns may be overwritten afterwards.

        Blocks while too many windows are unacknowledged.
        """

    def drain(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` until all sent windows are stored. Returns whether they are."""

    def close(self) -> None:
        """Ends the stream. Its grants return to the gate."""


class EvaluationQueue(Protocol):
    """Tasks for an evaluator."""

    def next(self, timeout_s: float) -> EvaluationTask | None:
        """Waits for a task; None on timeout. Raises `RunFinished` at the end of the run."""

    def deliver(self, result: EvaluationResult) -> None:
        """Sends a result, without blocking."""


class Process(Protocol):
    """The process that an actor or evaluator runs in."""

    @property
    def stopping(self) -> bool:
        """Whether the process is to stop."""

    @property
    def supervised(self) -> bool:
        """Whether a launcher, which has checked the environments, started this process."""

    def wait(self, timeout_s: float) -> bool:
        """Sleeps for `timeout_s` seconds unless the process is stopping; returns whether it is stopping."""

    def restore_process(self) -> None:
        """Restores the signal handlers and the working directory, which the making of environments may have changed."""

    def take_signals(self) -> None:
        """Takes the signals that stop the process back from environments, which may handle them or ignore them."""

    def seed_generators(self, *key: int | str) -> None:
        """Seeds the random generators that environments share in this process; equal keys give equal numbers."""


class Log(Protocol):
    """Structured log: an event and its fields."""

    def info(self, event: str, **fields: object) -> object:
        """Logs an ordinary event."""

    def warning(self, event: str, **fields: object) -> object:
        """Logs an event that needs attention."""
