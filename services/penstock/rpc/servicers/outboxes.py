"""Outboxes of the actors' streams, through which the replay service hands out grants. Used on one event loop."""

import asyncio
import time

from penstock.errors import Unavailable
from penstock.replay.admission import ActorKey
from penstock.replay.buffer import ReplayBuffer
from penstock.types.replay import Grant, StagingOffer
from penstock.v1 import replay_pb2
from penstock.wire import replay as wire

ANSWERED_WITHIN_S = 0.1
"""Longest delay in seconds of the answer to a window or a commit, which may go with another message."""


class Outbox:
    """Messages owed to an actor's stream. Acknowledgements and grants accumulate while it writes.

    An acknowledgement waits briefly for a grant to go with it, because a message costs more than its content.
    """

    def __init__(self, stored_sequence: int, staging: StagingOffer | None) -> None:
        self._stored_sequence, self._staging = stored_sequence, staging
        self._grants: list[Grant] = []
        self._staging_proof: int | None = None
        self._returned = 0
        self._recalled = False
        self._due: asyncio.TimerHandle | None = None
        self._filled = asyncio.Event()
        self.granted = asyncio.Event()
        self._filled.set()

    def acknowledge(self, sequence: int) -> None:
        """Sends the last stored sequence soon."""
        self._stored_sequence = sequence
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(ANSWERED_WITHIN_S, self._filled.set)

    def grant(self, grant: Grant) -> None:
        """Sends a grant."""
        self._grants.append(grant)
        self._filled.set()
        self.granted.set()

    def take_back(self, count: int) -> None:
        """Reports that `count` grants of this stream have returned to the gate."""
        self._returned += count
        self._filled.set()

    def prove_staging(self, number: int) -> None:
        """Sends the service's side of the proof; 0 if the client's proof failed."""
        self._staging_proof = number
        self._filled.set()

    def recall(self) -> None:
        """Ends the stream, because all its grants have returned to the gate and its actor still counts on them."""
        self._recalled = True
        self._filled.set()

    async def next(self) -> replay_pb2.AppendSegmentsResponse:
        """Waits for content and returns the next message. Raises `Unavailable` once the stream is recalled."""
        await self._filled.wait()
        if self._recalled:
            raise Unavailable("the learner has a new plan, which ends all grants; open the stream again")
        return self.take()

    @property
    def owes(self) -> bool:
        """Whether an acknowledgement was not sent yet."""
        return self._due is not None

    def take(self) -> replay_pb2.AppendSegmentsResponse:
        """Removes the content and returns it as a message."""
        self._filled.clear()
        if self._due is not None:
            self._due.cancel()
            self._due = None
        grants, self._grants = self._grants, []
        returned, self._returned = self._returned, 0
        staging, self._staging = self._staging, None
        proof, self._staging_proof = self._staging_proof, None
        return wire.encode_append_response(self._stored_sequence, grants, staging, returned, proof)


class Outboxes:
    """Outboxes of all open streams, and the notice of changes for all tasks.

    Attributes:
        changed: Event that is set, and replaced by another, at every change of the buffer's state.
    """

    def __init__(self, buffer: ReplayBuffer) -> None:
        self._buffer = buffer
        self._of_actor: dict[ActorKey, Outbox] = {}
        self.changed = asyncio.Event()

    def current(self, key: ActorKey) -> Outbox | None:
        """Returns the outbox of the newest stream of an actor."""
        return self._of_actor.get(key)

    def open(self, key: ActorKey, outbox: Outbox) -> None:
        """Adds an outbox. It replaces that of an earlier stream, whose break this server may not have noticed."""
        self._of_actor[key] = outbox

    def close(self, key: ActorKey) -> None:
        """Removes the outbox of an actor."""
        del self._of_actor[key]

    def recall(self) -> None:
        """Ends all streams."""
        for outbox in self._of_actor.values():
            outbox.recall()

    def distribute(self) -> None:
        """Hands new grants to their streams and wakes all tasks that wait for a change."""
        self.hand_out_grants()
        self.changed.set()
        self.changed = asyncio.Event()

    def hand_out_grants(self) -> None:
        """Hands new grants to their streams, and reports grants that returned to the gate."""
        issued = self._buffer.issue_grants(time.monotonic())
        for key, count in self._buffer.take_returned().items():
            self._of_actor[key].take_back(count)
        for key, grant in issued:
            self._of_actor[key].grant(grant)
