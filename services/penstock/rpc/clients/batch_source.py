"""The learner's batches from one replay service, requested ahead, and the commits that return priorities.

A stream on a loop thread fills the queue of batches, which the training thread takes.
"""

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError, Unavailable
from penstock.rpc import methods
from penstock.rpc.channel import Backoff
from penstock.rpc.clients.commit_ledger import CommitLedger
from penstock.rpc.clients.connection import Peer, PersistentStream
from penstock.rpc.clients.round_trip import RoundTrip
from penstock.rpc.clients.sampling_stream import SamplingStream
from penstock.rpc.loop import LoopThread
from penstock.telemetry import logs, metrics
from penstock.types.block import Schema
from penstock.types.payloads import Memory, PayloadPool
from penstock.types.replay import Batch, CommitOutcome, SamplingPlan
from penstock.types.waits import Awaited, WaitReason
from penstock.wire import batches as wire

_STOP_CHECK_S = 0.1
_MOST_PREFETCHED = 16
"""Limit on the batches requested ahead over a long round trip if the gate sets none."""

_TIMED_BATCHES = 9
"""Batches whose mean interval tells how many are trained during a round trip."""

FAREWELL_S = 2.0
"""Seconds that `close` waits for outstanding commits, and the default deadline of `finish`."""


class ReplayBatchSource:
    """Source of the learner's batches; implements `learning.protocols.BatchSource`.

    It owns the plan, the batches that are not taken and the commits that are not answered.

    Attributes:
        next_number: Number of the batch that `next` returns. All other numbers on this side follow from it, from the
            newest commit (`CommitLedger.newest`) and from the requests on the open stream
            (`SamplingStream.next_request`).
        heard_at: Time of the last message on the open stream, by `time.monotonic`; minus infinity while none is open.
        reads: Transport of the columns: "mapped store" or "messages"; empty before the stream is ready.
    """

    def __init__(
        self,
        thread: LoopThread,
        peer: Peer,
        schema: Schema,
        *,
        prefetch_batches: int,
        stopping: Callable[[], bool] = lambda: False,
        replay_segments: Callable[[int], int | None] = lambda number: None,
        changed: threading.Condition | None = None,
        arrived: Callable[[Batch], None] = lambda batch: None,
        memory: Memory | None = None,
        key: bytes = b"",
    ) -> None:
        """Prepares the stream to the replay service, which `open` starts.

        `prefetch_batches`, and as many more as are trained during a round trip, are requested ahead of the one that
        `next` returns. Once `stopping` returns True, `commit` no longer waits for room. The loop calls
        `replay_segments` with a batch's number for the number of segments to replay in it, None for the plan's, and
        `arrived` with each batch before `next` returns it; neither may wait.
        `memory` allocates the memory of all columns; None: they may lie in any memory, such as their message's. Several
        sources may share the condition `changed`, which guards the state and is notified of every change. `key` is the
        run's key, which a plan with a run needs.
        """
        self._thread, self._schema, self._prefetch, self._stopping = thread, schema, prefetch_batches, stopping
        self._key = key
        self._replay_segments, self._arrived = replay_segments, arrived
        self._stream = PersistentStream(
            thread, "replay", peer, self._run, broken=self._note_break, ended=self._abandon_commits, changed=changed
        )
        self._lock = self._stream.changed
        self._round_trip = RoundTrip(self._stream)
        self._taken_at: deque[float] = deque(maxlen=_TIMED_BATCHES)
        self._ready: deque[Batch] = deque()
        self._ledger = CommitLedger()
        self._pool = PayloadPool(memory=memory)
        self._plan: SamplingPlan | None = None
        self._adjusted = self._noted_refusal = False
        self._waiting = Awaited.REPLAY_SERVICE
        self.heard_at = -math.inf
        self._wanted = asyncio.Event()
        self.next_number = 0
        self.reads = ""

    def open(self, plan: SamplingPlan) -> None:
        """Starts the stream: sends the plan and requests the first batches."""
        self._plan, self.next_number = plan, plan.next_batch
        self._stream.open()

    def adjust(self, plan: SamplingPlan) -> None:
        """Replaces the plan within the session, which changes later batches and how far collection may run ahead."""
        with self._lock:
            self._plan, self._adjusted = plan, True
        self._thread.call(self._wanted.set)

    @property
    def waiting_for(self) -> WaitReason | None:
        """Reason why the next batch is not ready; None if it is."""
        with self._lock:
            return None if self._ready else WaitReason(self._waiting)

    @property
    def ready(self) -> Batch | None:
        """Batch that `next` would return immediately, if any. Raises the error that ended the stream for good."""
        with self._lock:
            self._stream.check()
            return self._ready[0] if self._ready else None

    def skip(self) -> None:
        """Skips the batch that `next` would return. The caller must then commit it without keys."""
        with self._lock:
            self.next_number += 1
            self._ledger.skip()
            while self._ready and self._ready[0].number < self.next_number:
                self._ready.popleft()

    def next(self, timeout_s: float) -> Batch | None:
        """Waits for the next batch; None after `timeout_s`. Raises the error that ended the stream for good."""
        with self._lock:
            self._stream.wait_for(lambda: self._ready, timeout_s)
            self._stream.check()
            if not self._ready:
                return None
            batch, last_wanted = self._ready.popleft(), self._last_wanted
            self.next_number = batch.number + 1
            self._taken_at.append(time.monotonic())
            wanted = self._last_wanted > last_wanted
        if wanted:
            self._thread.call(self._wanted.set)
        return batch

    def commit(self, batch: Batch, priorities: NDArray[np.float64]) -> Future[CommitOutcome]:
        """Ends a batch's lease with <float64>[B] new priorities.

        The future yields the answer, even if the stream breaks meanwhile. Waits while too many commits are unanswered.
        Raises `Unavailable` if the process is to stop first, or the error that ended the stream for good.
        """
        return self.commit_keys(batch.number, batch.keys, priorities)

    def commit_keys(
        self, number: int, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
    ) -> Future[CommitOutcome]:
        """Commits a batch by its keys, otherwise as `commit`. Without keys, passes over all batches up to `number`."""
        assert self._plan is not None
        request = wire.encode_commit(self._plan.session, number, keys, priorities)
        with self._lock:
            while keys.size and self._ledger.is_full:
                if self._stopping():
                    raise Unavailable(f"{self._stream.peer} does not answer {self._ledger.unanswered} commits")
                self._lock.wait(_STOP_CHECK_S)
            self._stream.check()
            outcome = self._ledger.add(number, request, passes_over=not keys.size)
        self._thread.call(self._wanted.set)
        return outcome

    def finish(self, timeout_s: float = FAREWELL_S) -> None:
        """Reports the end of the run to the service. A failure is logged, not raised."""
        assert self._plan is not None
        try:
            self._stream.call(methods.FINISH_RUN, timeout_s, self._key, session=self._plan.session)
        except PenstockError as error:
            logs.note("end of the run not reported", reason=str(error))

    def close(self, farewell_s: float = FAREWELL_S) -> None:
        """Waits up to `farewell_s` for outstanding commits, then ends the stream. Leases stay with the session."""
        with self._lock:
            self._stream.wait_for(lambda: not self._ledger.unanswered, farewell_s)
        self._stream.close()

    @property
    def _last_wanted(self) -> int:
        """Last batch to request now.

        Once the batch in training is committed, one more is requested, so that its request can carry that commit.
        """
        return self.next_number + self._prefetched + (self._ledger.newest == self.next_number - 1)

    @property
    def _prefetched(self) -> int:
        """Number of batches to request ahead of the one that `next` returns.

        Those that are trained during a round trip are requested in addition, as far as the gate can fill them: the
        commit that makes room for a batch, d + 1 batches earlier, carries the request for it. Draws that are earlier
        than necessary would use older priorities, and segments must not become too old to be replayed meanwhile.
        """
        plan, taken_at = self._plan, self._taken_at
        if plan is None or len(taken_at) < _TIMED_BATCHES:
            return self._prefetch
        trained = int(self._round_trip.seconds * (len(taken_at) - 1) / (taken_at[-1] - taken_at[0]))
        most = plan.off_policy_degree - 1 if plan.fresh_segments else _MOST_PREFETCHED
        most = min(most, plan.max_staleness - plan.off_policy_degree - plan.publish_interval)
        return max(self._prefetch, min(self._prefetch + trained, most))

    # On the loop

    def _note_break(self, error: PenstockError) -> None:
        with self._lock:
            self._waiting, self.heard_at = Awaited.REPLAY_SERVICE, -math.inf
            self._lock.notify_all()

    def _abandon_commits(self, error: PenstockError) -> None:
        with self._lock:
            lost = self._ledger.abandon()
            self._lock.notify_all()
        for commit in lost:
            commit.outcome.set_exception(error)

    async def _run(self, backoff: Backoff) -> None:
        with self._lock:
            plan, self._adjusted = self._plan, False
            self._ledger.resend()
            # A new store in place of a lost one starts at this batch and answers earlier commits as repeated.
            first = self._ready[-1].number + 1 if self._ready else self.next_number
        assert plan is not None
        call = self._stream.open_stream(methods.SAMPLE_BATCHES, key=self._key)
        stream = SamplingStream(call, replace(plan, next_batch=first), self._schema, self._pool)

        def take(response: wire.SampleResponse) -> None:
            backoff.reset()
            if stream.accepted:
                self.heard_at = time.monotonic()
            if response.kind in ("opened", "proof"):
                self._note_columns(stream)
            elif response.kind == "waiting":
                with self._lock:
                    self._waiting = WaitReason.parse(response.message.waiting).awaited
            if (answer := wire.decode_commit_answer(response)) is not None:
                self._settle(answer)

        await stream.run(request=self._request, watch=self._round_trip.watch, take=take, deliver=self._deliver)

    def _note_columns(self, stream: SamplingStream) -> None:
        if stream.refusal and not self._noted_refusal:
            self._noted_refusal = True
            logs.note("mapped store not used", reason=stream.refusal)
        if stream.ready:
            self.reads = "mapped store" if stream.reader else "messages"
            metrics.LEARNER_MAPPED.set(stream.reader is not None)
        self._wanted.set()

    async def _request(self, stream: SamplingStream) -> None:
        """Writes proofs, plans, commits and requests for batches as they are due, until it is cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            with self._lock:
                plan, adjusted, self._adjusted = self._plan, self._adjusted, False
            await stream.prove_if_mapped()
            if adjusted and plan is not None:
                await stream.adjust(plan)
            while stream.ready:
                commit, number = self._due(stream)
                if number is not None:
                    await stream.request(number, self._replay_segments(number), commit)
                elif commit is not None:
                    await stream.commit(commit)
                else:
                    break

    def _due(self, stream: SamplingStream) -> tuple[wire.CommitRequest | None, int | None]:
        """Returns the commit to send and the number of the batch to request, each None if there is none."""
        with self._lock:
            commit = self._ledger.next_to_send()
            number = max(stream.next_request, self.next_number)
            due = number <= self._last_wanted and not self._ledger.blocks_requests
            return commit, number if due else None

    def _settle(self, answer: wire.CommitAnswer) -> None:
        with self._lock:
            commit = self._ledger.answer(answer.number)
            self._lock.notify_all()
            waiting = self._ledger.blocks_requests
        if waiting:
            # A commit without keys may leave now.
            self._wanted.set()
        commit.outcome.set_result(answer.outcome)

    def _deliver(self, batch: Batch) -> None:
        with self._lock:
            if batch.number >= self.next_number:
                self._arrived(batch)
                self._ready.append(batch)
            self._waiting = Awaited.FRESH_SEGMENTS
            self._lock.notify_all()
