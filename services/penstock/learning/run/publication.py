"""Publication of the policy's versions.

On CUDA the training thread waits once per version, for the copy of the weights to the host. Another thread encodes,
hashes and publishes them, so that the device does not stand still meanwhile. On a CPU all of it happens at once.
"""

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.algo import weights
from penstock.learning.protocols import WeightSink
from penstock.learning.step.host_copies import HostCopy, on_host
from penstock.learning.step.learner import Learner, check_sums

_UNPUBLISHED = 2
"""Versions that are copied and not yet published, at most. Each holds a copy of the weights."""

_SUMS = "sums"


class Publication:
    """Publisher of a learner's versions, in their order. Used by the training thread."""

    def __init__(self, learner: Learner, sink: WeightSink, *, beside: bool | None = None) -> None:
        """Creates a thread if weights are to be encoded `beside` the training, by default on CUDA."""
        self._learner, self._sink = learner, sink
        self._encoder = weights.Encoder(learner.policy)
        if beside is None:
            beside = learner.parameters.device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="publication") if beside else None
        self._unpublished: deque[Future[None]] = deque()

    def publish(self, version: int) -> None:
        """Publishes the parameters as they are now as this version.

        Raises `Diverged` if a value is not finite. An error of an earlier version's publication is raised here too.
        """
        thread, state = self._thread, self._encoder.state()
        if thread is None:
            self._learner.check_finite()
            self._send(version, on_host(state))
            return
        while len(self._unpublished) >= _UNPUBLISHED:
            self._unpublished.popleft().result()
        copies = HostCopy({**state, _SUMS: self._learner.sums()}).wait()
        check_sums(copies.pop(_SUMS))
        self._unpublished.append(thread.submit(self._send, version, copies))

    def finish(self) -> None:
        """Waits until all versions are published."""
        while self._unpublished:
            self._unpublished.popleft().result()

    def close(self) -> None:
        """Stops the thread, if there is one, after the versions that it has."""
        if self._thread is not None:
            self._thread.shutdown()

    def _send(self, version: int, state: weights.State) -> None:
        self._sink.publish(self._encoder.encode(version, state))
